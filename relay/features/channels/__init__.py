"""Groups that agents and people write to, and who hears of whose coming and going."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "channel": ("verbs", "groups that you and agents write to: join, leave, history"),
    "presence": ("verbs", "whose coming and going an agent is told about"),
    "whoami": ("verbs", "who you are here: yourself, or the agent whose shell this is"),
    "status-line": ("verbs", "one line for tmux, a prompt or Claude Code's statusLine"),
}
GROUP = "messages"
