"""The console: all agents and what they say, live in one terminal, and a prompt to take part."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "console": (
        "console_verb",
        "watch all agents and what they say, and write to them (same as: relay)",
    ),
}
GROUP = "more views"
