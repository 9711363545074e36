"""The console: all agents and what they say, live in one terminal, and a prompt to take part."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "console": ("console_verb", "see all agents and what they say, and take part (as: relay)"),
}
GROUP = "more views"
