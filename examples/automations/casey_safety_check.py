"""A check at one time: has Casey written that she is home? If not, somebody is to be called.

It runs once. For the next time: set `at`, then `relay automation update casey-safety-check`.
"""

from datetime import timedelta

from relay import Automation, AutomationResult

WRITTEN = """
    SELECT e.body FROM events e
    JOIN person_addresses a ON a.channel = e.channel AND a.address = e.agent
    JOIN persons p ON p.id = a.person
    WHERE p.name = ? COLLATE NOCASE AND e.kind = 'message' AND e.created_ms > ?
    ORDER BY e.seq DESC LIMIT 20"""
QUESTION = """\
Do these messages, the newest first, say that their sender has arrived at home safely?
Answer {{"home": true}} or {{"home": false}}; false if it is not certain.

{messages}"""


def handler(ctx):
    config = ctx.automation.config
    since = ctx.now - timedelta(hours=config["hours"])
    found = ctx.ledger.query(WRITTEN, [config["person"], int(since.timestamp() * 1000)])
    messages = [row["body"] for row in found]
    if messages:
        quoted = "\n".join(f"> {one}" for one in messages)
        if ctx.llm(QUESTION.format(messages=quoted), json=True).get("home") is True:
            ctx.log.info("%s is home", config["person"])
            return AutomationResult(disable=True)
    prompt = (
        f"{config['person']} has not said that she is home. Call {config['call']}, and ask"
        " whether they know that she is safe."
    )
    context = {"prompt": prompt, "data": {"messages": messages}}
    return AutomationResult(fire=True, agent=config["agent"], context=context, disable=True)


automation = Automation(
    name="casey-safety-check",
    description="Is Casey home at half past midnight? If she has not said so, call Tyler.",
    schedule={"at": "2030-02-06T00:30", "timezone": "America/Los_Angeles"},
    config={"person": "Casey", "hours": 4, "call": "Tyler", "agent": "phone-caller"},
    handler=handler,
)
