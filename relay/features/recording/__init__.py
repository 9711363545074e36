"""recording."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "replay": ("replay", "what would fire in a recorded terminal; nothing is sent"),
}
