"""Tries out what relay can do with a program, by a standard conversation."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "agent": ("agent_verbs", "test what relay can do with a program"),
}
GROUP = "set-up"
