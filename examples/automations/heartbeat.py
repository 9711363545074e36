"""A heartbeat: every half hour, but not at night, an agent looks whether something needs you."""

from relay import Automation, AutomationResult

PROMPT = """\
This is a routine look, nobody has asked. Read TODO.md and what has changed in this folder.
If something needs a person now, say what, in two sentences. If not, answer only: NOTHING"""


def handler(ctx):
    begin, end = ctx.automation.config["quiet_hours"]
    hour = ctx.now.hour
    quiet = begin <= hour or hour < end if begin > end else begin <= hour < end
    if quiet:
        return False
    [found] = ctx.ledger.query(
        "SELECT count(*) AS messages FROM events WHERE kind = 'message' AND created_ms > ?",
        [ctx.state.get("last_ms", 0)],
    )
    ctx.state["last_ms"] = int(ctx.now.timestamp() * 1000)
    data = {"messages_since_last_time": found["messages"]}
    may = {"level": "restricted", "tools": {"allow": ["read", "search"]}}
    return AutomationResult(
        fire=True,
        context={"prompt": PROMPT, "data": data},
        permissions=may,
        quiet_when="NOTHING",
    )


automation = Automation(
    name="heartbeat",
    description="Every half hour by day: does anything need attention?",
    schedule={"every": "30m"},
    config={"quiet_hours": [23, 8]},
    handler=handler,
)
