"""Functions that relay runs for events or by the clock, on the workers and lanes of personas."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "automation": ("automation_verbs", "functions that relay runs for events or by the clock"),
}
