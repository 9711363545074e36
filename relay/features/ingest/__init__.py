"""Transcripts of other programs, taken into the agent ledger."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "search": ("history_search", "find what was said in the agents' own histories; resume it"),
}
GROUP = "more views"
