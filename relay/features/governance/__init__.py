"""Projects in which no agent writes without an intent that allows it."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "intent": ("intent_verbs", "what agents may change in a governed project, and why"),
    "govern": ("govern_verbs", "whether agents need an intent to write here; turn it off or on"),
}
GROUP = "what agents do"
#: name in ctx -> (module of this package, what makes it).
CONTEXT = {"intent": ("session", "intent_commands")}
#: What a scope of this kind lets a confined program write: (module of this package, what finds it).
SCOPES = {"intent": ("confined_scope", "scope_of")}
#: What programs import from relay: name -> (module of this package, name in it).
PUBLIC = {
    name: ("own_tools", name)
    for name in (
        *("GovernedTools", "HookBlocked", "end_turn", "govern", "governed", "intent_rules"),
        "select_intent",
    )
}
