"""Notices for a person who looks elsewhere."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "notify": ("verbs", "a bell and a notice when something needs you"),
}
GROUP = "more views"
