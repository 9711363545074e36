"""What agents keep for each other: the memory service and its indexes."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "memory": ("verbs", "save, search and move the facts that you and your agents keep"),
}
GROUP = "what agents do"
#: name in ctx -> (module of this package, what makes it).
CONTEXT = {"memory": ("context_memory", "ContextMemory")}
