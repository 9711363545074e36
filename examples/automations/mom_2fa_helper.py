"""Mom asks for a login code that was sent to you: an agent answers her, if it is certain enough.

Anyone who writes from Mom's address is taken for her. Choose services that are worth no more.
"""

import re
from datetime import timedelta

from relay import Automation, AutomationResult

QUESTION = """\
Does the sender of this message ask for a login code (two-factor code) of a service, now?
Answer {{"asks": true or false, "service": its name or null, "confidence": 0.0 to 1.0}}.

> {message}"""
RECENT = """
    SELECT body FROM events WHERE kind = 'message' AND channel IN ('sms', 'imessage')
    AND created_ms > ? AND seq IN (SELECT event FROM event_participants
        JOIN persons ON persons.id = person WHERE type IN ('unknown', 'system'))
    ORDER BY seq DESC LIMIT 50"""


def handler(ctx):
    config = ctx.automation.config
    told = ctx.llm(QUESTION.format(message=ctx.event.content.replace("\n", "\n> ")), json=True)
    service = str(told.get("service") or "").lower()
    if told.get("asks") is not True or float(told.get("confidence") or 0) < config["confidence"]:
        return False
    if service not in config["services"]:
        ctx.log.info("no code of %r is passed on", service)
        return False
    since = ctx.now - timedelta(minutes=config["minutes"])
    for row in ctx.ledger.query(RECENT, [int(since.timestamp() * 1000)]):
        code = re.search(r"\b\d{4,8}\b", row["body"])
        if code and service in row["body"].lower():
            prompt = f"Tell Mom that the {service} code is {code[0]}, in one friendly sentence."
            return AutomationResult(fire=True, context={"prompt": prompt})
    prompt = f"Tell Mom that no {service} code has come yet, and that she can have it sent again."
    return AutomationResult(fire=True, context={"prompt": prompt})


automation = Automation(
    name="mom-2fa-helper",
    description="Answers Mom when she asks for a login code of a shared account.",
    triggers={
        "principal": {"name": "Mom", "relationship": "family"},
        "event": {"channels": ["imessage", "sms"], "types": ["message"], "direction": "received"},
    },
    config={"services": ["netflix", "spotify"], "confidence": 0.8, "minutes": 15},
    handler=handler,
)
