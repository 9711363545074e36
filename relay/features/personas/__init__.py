"""Personas: what route functions make of events, and the turns that answer them."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "ingest": ("verbs", "bring in an event from elsewhere: a mail, a webhook, a chat"),
    "event": ("verbs", "tag, flag or archive stored events"),
    "person": ("verbs", "list, add and merge the people behind mail and chat addresses"),
}
GROUP = "what agents do"
