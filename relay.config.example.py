"""Handlers of every kind, and some settings (relay config keys lists all). Copy what you need.

The file runs only after `relay trust`. It can import what is installed, but not the modules
beside it. docs/config.md and docs/hooks.md explain each part.
"""

import asyncio

from relay import Relay

relay = Relay(
    idle_seconds=60,  # an agent that is silent for this long is idle
    timeout=20,  # seconds that a handler may take
    task="keep the tests green",  # ctx.task, unless relay wrap --task says otherwise
    # What finds memories by meaning: "local", "mem0" or "qdrant", with "config"; docs/memory.md.
    memory={"backend": "local", "prompt_on_end": True, "inject_on_start": True},
)


# --- Patterns: an agent writes   @deploy:staging Release v1.2.3


@relay.pattern("deploy:staging", timeout=300)
async def deploy_staging(target, message, ctx):
    """Async, and with more time. A string that you return goes to the agent."""
    process = await asyncio.create_subprocess_exec(
        "echo", "deployed", message, cwd=ctx.working_dir, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return f"{target}: {output.decode().strip()}"


@relay.pattern("deploy:prod-*")
def deploy_production(target, ctx):
    """A glob. A handler takes the arguments it names. stop: nothing less specific runs."""
    ctx.notify("deployments", f"{ctx.agent_name} asks to deploy {target}")
    return {"inject": f"{target} needs a person; I have asked one.", "stop": True}


@relay.pattern("deploy")
def deploy_anything(target):
    """Every other target; for staging it runs after deploy_staging."""
    return {"inject": [f"Known targets: staging, prod-*. You wrote {target}."]}


@relay.pattern("relay:everybody", override=True)
def everybody(message, ctx):
    """override: relay's own handler does not run for this target."""
    ctx.relay.broadcast(message)


@relay.pattern("who")
async def who(ctx):
    """Async handlers await what they need to know; sync ones just use it."""
    agents = await ctx.relay.agents()
    return ", ".join(agent["name"] for agent in agents if agent["state"] != "gone")


# --- Hooks, by decorator


@relay.on("session_start")
async def greet(ctx):
    """Once the agent is up."""
    await ctx.inject(f"You are {ctx.agent_name}. Your task: {ctx.task}")


@relay.on("session_start", priority=10)
def announce(ctx):
    """A higher priority runs earlier. A receipt is the message's id."""
    receipt = ctx.send("lead", f"{ctx.agent_name} starts in {ctx.working_dir}", mode="steer")
    return f"announced as {receipt}"


# --- The same in a dictionary. camelCase names work too.


def on_output(output, ctx):
    """What the agent has said, as plain text."""
    if "ERROR" in output:
        ctx.notify("errors", output)


def on_message_received(sender, body, ctx):
    """A message is about to reach the agent. ctx.messages holds the last ones."""
    if body.startswith("ping"):
        ctx.send(sender, f"pong, after {len(ctx.messages)} messages")


def on_idle(ctx):
    """Once per silence of idle_seconds. None: nothing happens."""
    if ctx.output and ctx.output[-1].endswith("?"):
        return "Nobody has answered yet; go on with what you know."
    return None


def on_wedged(ctx, why):
    """It is busy, but for minutes there was no output, no hook, no processor time."""
    ctx.send("*", f"{ctx.agent_name} seems to be stuck: {why}")


def on_tool_call(phase, tool, input, response, ctx):
    """Before and after each tool call: block it, or change its input."""
    if phase == "before" and tool == "Bash" and "rm -rf" in str(input.get("command")):
        return {"decision": "deny", "reason": "ask a person before you remove folders"}
    return None


def on_before_agent(prompt):
    """The agent got a prompt. Its model sees what you return as context."""
    return {"context": "Answer in one paragraph."} if "briefly" in (prompt or "") else None


def on_after_agent(response, ctx):
    """Its turn has ended."""
    ctx.notify("turns", f"{ctx.agent_name} is done")


def on_notification(message, ctx):
    """It wants the attention of its user."""
    ctx.notify("attention", message or f"{ctx.agent_name} waits for you")


async def on_session_end(context):
    """camelCase works here too: context.agentId is context.agent_id."""
    await context.notify("sessions", f"{context.agentId} ended, home {context.env.get('HOME')}")


hooks = {
    "on_output": on_output,
    "onMessageReceived": on_message_received,
    "on_idle": {"handler": on_idle, "priority": 5, "timeout": 5},
    "on_wedged": on_wedged,
    "sessionEnd": [on_session_end],
    "on_tool_call": {"handler": on_tool_call, "matcher": "Bash|Edit|Write", "on_failure": "block"},
    "on_before_agent": on_before_agent,
    "on_after_agent": on_after_agent,
    "on_notification": on_notification,
    # A command gets the event as JSON on its standard input; status 2 means: block.
    "on_pre_compress": {"command": ["touch", "compacted"], "timeout": 5, "name": "note it"},
}

patterns = {
    "relay": "builtin",  # relay's own handler, which you have without this line too
    "note": lambda message, ctx: ctx.notify("notes", message) and None,
}
