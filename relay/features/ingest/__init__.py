"""Transcripts of other programs, taken into the agent ledger."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "search": ("history_search", "search the agents' own histories, and resume what you find"),
}
GROUP = "messages"
