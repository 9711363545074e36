"""What ``relay init`` writes; apart from the verbs, because it is a text for people to edit."""

TEMPLATE = '''\
"""What relay does for the agents that are wrapped in this folder.

This file runs only after: relay trust. After every change relay asks for that again.
"""

# How long an agent must be silent before on_idle runs, and how long a handler may take: seconds.
config = {
    "idle_seconds": 30,
    "timeout": 30,
}


# An agent that writes the line   @hello:world How are you?   reaches this handler:
#   target  "world"
#   message "How are you?"
#   ctx     who the agent is (ctx.agent_name, ctx.working_dir, ctx.env, ctx.task) and what can be
#           done: ctx.inject(text), ctx.send(to, text), ctx.notify(topic, text)
# A string that comes back is given to the agent. It may also be None, or
# {"inject": "text", "stop": True}; stop keeps other handlers from running.
def hello(target, message, ctx):
    return f"{ctx.agent_name} said to {target}: {message}"


# "hello" is every @hello:…; "hello:world" only that one; "hello:w*" is a glob.
patterns = {
    "hello": hello,
}


# Handlers may be async. Those of events: on_session_start(ctx), on_session_end(ctx),
# on_output(output, ctx), on_message_received(sender, body, ctx), on_idle(ctx).
async def on_session_start(ctx):
    if ctx.task:
        return f"Your task: {ctx.task}"


hooks = {
    "on_session_start": on_session_start,
}
'''

#: ``relay.yaml``, for ``relay init --team``.
TEAM_TEMPLATE = """\
# The team of this project. `relay up` starts all agents, `relay down` ends them; both take names.
# It names commands, so relay asks you before it uses this file for the first time, and after
# every change.

agents:
  Alice:
    command: claude
    # What she is for: messages to @relay:builder reach her too.
    role: builder
    # What she should do. She gets this as a message from you when she has started.
    task: |
      Build what README.md asks for. When something can be looked at, tell @relay:Bob.
    # Channels: what is said to @relay:#build reaches all who have joined it. (Leave out the #.)
    channels: [build]
    # Her own git worktree, on the branch relay/Alice, so that she works undisturbed. It begins at
    # your current commit. `relay down` asks whether to merge, keep or discard it. You can also
    # write the name of a branch instead of true.
    worktree: true

  Bob:
    command: codex
    role: [reviewer, tester]
    channels: [build]
    worktree: true

  # More agents: a command (a text, or a list of its words) is all that one needs.
  # Carol: {command: bash, cwd: docs}
"""

#: ``.orchestration/active_intents.yaml``, for ``relay init --governed``.
INTENTS_TEMPLATE = """\
# What is to be done in this project, and in which files. As long as this folder is here, an agent
# that relay wraps cannot write in the project before it has selected one of these intents.
#
# Change it when you like: changes count from the next tool call on. Mistakes block all writes;
# `relay intent check` shows them. relay changes nothing in here except a status.

active_intents:
  - id: INT-001
    name: Say here in a line what is to be done
    # PENDING, IN_PROGRESS, COMPLETE or BLOCKED. An agent writes for one in progress only, and
    # begins a pending one by selecting it. What is complete or blocked you alone open again.
    status: PENDING
    # Files as seen from the project's folder. ** is any number of folders, * anything in one name.
    # With ! (and in quotes) come exceptions; they always win.
    owned_scope:
      - src/**
      - tests/**
      - "!src/**/secrets*"
    # What the agent is told with the intent.
    constraints:
      - Add no dependencies
    acceptance_criteria:
      - All tests pass

# How strict relay is. The values shown here are the defaults.
#
# governance:
#   unknown: approve           # commands whose effect is not clear: approve (a
#                              # person is asked), refuse, or allow (an intent is enough)
#   read_commands: []          # commands that only read, as globs: "terraform plan*"
#   run_commands: []           # ... that build or test: an intent is enough
#   approve_commands: []       # ... that always need your yes: "make deploy*"
#   read_tools: []             # the same for tools that relay does not know, such as MCP servers'
#   run_tools: []
#   approve_tools: []
#   approve_seconds: 300       # how long an agent waits for your yes
#   lease_seconds: 600         # how long a file stays one agent's after its last write there
#   select_every_turn: false   # true: an agent selects anew in every turn
"""
