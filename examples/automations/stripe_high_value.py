"""Payments above a limit: an agent is told at once. It needs no model to decide.

The events come from Stripe by `relay.integrations.webhook` (docs/broker.md), as `stripe`.
"""

import json

from relay import Automation, AutomationResult


def handler(ctx):
    try:
        told = json.loads(ctx.event.content)
        paid = told["data"]["object"]
        kind, amount, currency = told["type"], paid["amount"], paid["currency"].lower()
    except (ValueError, KeyError, TypeError, AttributeError):
        return False  # not of a payment
    limit = ctx.automation.config["limits"].get(currency)
    if kind not in ctx.automation.config["types"] or limit is None or amount < limit:
        return False
    prompt = "A large payment has come. Look up the customer, and say in three lines who they are."
    about = {"amount": amount, "currency": currency, "customer": paid.get("customer")}
    context = {"prompt": prompt, "data": about}
    inbox = {"channel": "relay"}  # not Stripe
    return AutomationResult(fire=True, agent="sales", context=context, delivery_context=inbox)


automation = Automation(
    name="stripe-high-value",
    description="Says who has paid 100 dollars or euros or more.",
    triggers={
        "principal": {"type": "webhook", "name": "stripe"},
        "event": {"channels": ["webhook"]},
    },
    # In the smallest unit of each currency, as Stripe counts.
    config={"types": ["charge.succeeded"], "limits": {"usd": 100_00, "eur": 100_00}},
    handler=handler,
)
