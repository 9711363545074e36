"""Functions that relay runs for events or by the clock, on the workers and lanes of personas."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "automation": ("verbs", "manage functions that relay runs for events or on a schedule"),
}
GROUP = "what agents do"
#: What programs import from relay: name -> (module of this package, name in it).
PUBLIC = {name: ("definition", name) for name in ("Automation", "AutomationResult")}
