"""Notices for a person who looks elsewhere."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "notify": ("verbs", "ring a bell and show a notice when something needs you"),
}
GROUP = "more views"
