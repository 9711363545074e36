"""Projects in which no agent writes without an intent that allows it."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "intent": ("intent_verbs", "what agents may change in a governed project, and for what"),
    "govern": ("govern_verbs", "whether agents need an intent to write here; off and on"),
}
