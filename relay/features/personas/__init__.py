"""Personas: what route functions make of events, and the turns that answer them."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "ingest": ("verbs", "bring in what happened elsewhere: a mail, a webhook, a chat message"),
    "event": ("verbs", "tag, flag or archive stored events"),
    "person": ("verbs", "who is behind mail and chat addresses: add, merge, list"),
}
GROUP = "what agents do"
