"""Projects in which no agent writes without an intent that allows it."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "intent": ("intent_verbs", "manage what agents may change in a governed project"),
    "govern": ("govern_verbs", "show, or turn off and on, whether agents need an intent here"),
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
