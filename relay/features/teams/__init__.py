"""A project's agents, as ``relay.yaml`` names them, each in a git worktree of its own."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "up": ("team_verbs", "start the agents that relay.yaml names"),
    "down": ("team_verbs", "end the agents of relay.yaml; asks what to do with worktrees"),
}
GROUP = "agents"
