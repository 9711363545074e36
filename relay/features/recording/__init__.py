"""Records an agent's terminal as an asciicast, and replays what would fire in one."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "replay": ("replay", "show what would fire in a recorded terminal; nothing is sent"),
}
GROUP = "what agents do"
