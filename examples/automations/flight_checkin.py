"""A confirmation of a flight: an agent is asked to check in, once for each flight.

Cheap tests come first: only what has one of the words goes to the model.
"""

from datetime import timedelta

from relay import Automation, AutomationResult

WORDS = ("flight", "boarding", "itinerary", "check-in", "e-ticket")
QUESTION = """\
Is this message a confirmation of a flight that its reader has booked?
Answer {{"flight": "UA123" or null, "departure": "2026-02-05T10:00" or null, "code": text or null}}.

{message}"""
DONE = """
    SELECT 1 FROM automation_runs WHERE automation = ? AND fired AND started_ms > ?
    AND json_extract(result_json, '$.context.data.flight') = ? LIMIT 1"""


def handler(ctx):
    content = ctx.event.content
    if not any(word in content.lower() for word in WORDS):
        return False
    told = ctx.llm(QUESTION.format(message=content[:20_000]), json=True)
    if not told.get("flight"):
        return False
    flight = str(told["flight"]).upper().replace(" ", "")
    since = ctx.now - timedelta(hours=ctx.automation.config["hours"])
    if ctx.ledger.query(DONE, [ctx.automation.id, int(since.timestamp() * 1000), flight]):
        return False  # airlines write more than once
    data = {"flight": flight, "departure": told.get("departure"), "code": told.get("code")}
    prompt = "Check in for this flight as soon as that is possible. Aisle seats are preferred."
    context = {"prompt": prompt, "data": data}
    # The answer is for you, not for the airline.
    return AutomationResult(fire=True, context=context, delivery_context={"channel": "relay"})


automation = Automation(
    name="flight-checkin",
    description="Has flights checked in for which a confirmation has come by mail.",
    triggers={"event": {"channels": ["mail"], "types": ["message"], "direction": "received"}},
    config={"hours": 24},
    handler=handler,
)
