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
