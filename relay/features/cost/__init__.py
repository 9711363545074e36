"""What agents cost: tokens and money by agent, day and task, caps, and the limits of accounts."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "cost": ("verbs", "show what agents cost: tokens and money by agent, day or task"),
}
GROUP = "what agents do"
