"""Programs that the kernel holds: they read everything, and write only where they may.

``relay confine`` runs any program so; ``relay wrap --confine`` an agent, with all that it starts.
"""

#: name -> (module of this package, what the verb does).
VERBS = {"confine": ("verbs", "run a program that the kernel lets write only where you say")}
GROUP = "what agents do"
#: What other features need in order to have shells of agents held: (module, name in it).
HELD_SHELLS = {
    "places": ("start", "of_shells"),
    "git": ("start", "shared_git"),
    "weaker": ("confinement", "tell_weaker"),
}
