"""Personas: what route functions make of events, and the turns that answer them."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "ingest": ("verbs", "bring in what happened elsewhere: a mail, a webhook, a chat message"),
    "event": ("verbs", "your own tags, flags and status of stored events"),
    "person": ("verbs", "who is behind the addresses of mails and chats: add, merge, list"),
}
GROUP = "what agents do"
