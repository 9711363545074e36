"""Groups that agents and people write to, and who hears of whose coming and going."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "channel": ("verbs", "list, join and leave channels: groups of agents to write to"),
    "presence": ("verbs", "choose whose arrivals and departures an agent is told of"),
    "whoami": ("verbs", "say who you are here: yourself, or the agent whose shell this is"),
    "status-line": ("verbs", "print one line for tmux, a prompt or Claude Code's statusLine"),
}
GROUP = "messages"
