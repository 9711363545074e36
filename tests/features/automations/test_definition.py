"""What a file may say of an automation, and what its handler may return."""

from __future__ import annotations

from typing import Any

import pytest

from relay.core.dispatch import DeliveryContext, PermissionSet, PersonType
from relay.core.errors import UsageError
from relay.features.automations.definition import (
    Automation,
    AutomationResult,
    Definition,
    Principal,
    Triggers,
)

MOM = Principal(PersonType.KNOWN, "Mom", "family", "01MOM")


def given(**fields: Any) -> dict[str, Any]:
    return {"name": "one", "description": "does one thing", **fields}


def test_lists_are_or_and_fields_are_and() -> None:
    triggers = Triggers.from_json(
        {
            "principal": {"type": ["owner", "known"], "name": "mom"},
            "event": {"channels": ["imessage", "sms"], "direction": "received"},
        }
    )
    assert triggers.match_principal(MOM)
    assert not triggers.match_principal(Principal(PersonType.KNOWN, "Dad", "family"))
    assert triggers.match_event("message", "sms", "received")
    assert not triggers.match_event("message", "mail", "received")
    assert not triggers.match_event("message", "sms", "sent")


@pytest.mark.parametrize(
    ("principal", "matches"),
    [
        ({"relationship": ["family", "partner"]}, True),
        ({"relationship": "work"}, False),
        ({"entity_id": "01MOM"}, True),
        ({"type": "unknown"}, False),
        ({}, True),
    ],
    ids=["relationship", "other relationship", "entity", "type", "nothing said"],
)
def test_a_principal_matches_by_what_is_known_of_it(
    principal: dict[str, Any], matches: bool
) -> None:
    assert Triggers.from_json({"principal": principal}).match_principal(MOM) is matches


def test_without_triggers_every_event_is_wanted_but_not_with_a_schedule() -> None:
    assert Definition.of(given()).wants("message", "sms", "received")
    timed = Definition.of(given(schedule={"every": "30m"}))
    assert not timed.wants("message", "sms", "received")


def test_a_definition_travels_unchanged() -> None:
    made = Definition.of(
        Automation(
            "one",
            "does one thing",
            lambda ctx: None,
            triggers={"principal": {"name": "Mom"}, "event": {"types": ["message"]}},
            config={"over": 100},
            blocking=True,
            priority=3,
            deadline=5,
        )
    )
    assert Definition.of({**made.to_json()}) == made


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"name": "No Spaces"}, "name"),
        ({"description": ""}, "description"),
        ({"triggers": {"event": {"kinds": ["message"]}}}, "kinds"),
        ({"triggers": {"principal": {"type": "boss"}}}, "boss"),
        ({"triggers": {"event": {"types": []}}}, "types"),
        ({"triggers": {"principal": {"name": ["x" * 64] * 2000}}}, "triggers"),
        ({"schedule": {"every": "1s" + " " * 100_000}}, "schedule"),
        ({"config": {"a": {1: 2}}}, "config"),
        ({"config": {"a": float("nan")}}, "config"),
        ({"deadline": 0}, "deadline"),
        ({"deadline": 1e9}, "deadline"),
        ({"blocking": 1}, "blocking"),
        ({"trigger": {}}, "trigger"),
        ({"schedule": {"every": "soon"}}, "schedule.every"),
        ({"name": "minute", "schedule": {"every": "1h"}}, "call it otherwise"),
    ],
    ids=[
        *("name", "description", "unknown trigger", "unknown type", "empty list"),
        *("endless list", "endless schedule"),
        *("no JSON", "not finite", "no time", "too long", "no bool", "unknown key"),
        *("schedule", "name of all"),
    ],
)
def test_what_is_wrong_is_said_by_its_name(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Definition.of(given(**wrong))


def test_a_result_without_an_agent_is_for_the_persona_of_the_session() -> None:
    result = AutomationResult.of({"fire": True, "context": {"prompt": "Look.", "data": {"a": 1}}})
    said = result.hook_result("atlas", {"a": 0, "b": 2})
    assert said.routing is not None and said.routing.persona == "atlas"
    assert said.context is not None and said.context.system_prompt == "Look."
    assert said.context.extracted == {"a": 1, "b": 2}
    assert said.delivery_context is None


def test_a_result_says_where_the_answer_goes() -> None:
    result = AutomationResult(
        fire=True, delivery_context=DeliveryContext("relay"), quiet_when="NOTHING"
    )
    assert AutomationResult.of(result.to_json()) == result
    assert result.hook_result("atlas", {}).delivery_context == DeliveryContext("relay")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"fire": 1}, {"fires": True}, {"context": {"text": "x"}}, {"enrich": [1]}, {"agent": ""}),
        *({"delivery_context": {"peer": "x"}}, {"quiet_when": " "}, {"quiet_when": ["x"]}, 7),
    ],
    ids=[
        *("fire", "unknown key", "context", "enrich", "agent", "delivery"),
        *("quiet blank", "quiet list", "no result"),
    ],
)
def test_a_result_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError):
        AutomationResult.of(wrong)


def test_an_automations_permissions_are_read_as_a_route_functions() -> None:
    form = {"level": "restricted", "tools": {"allow": ["read"], "deny": []}}
    read = AutomationResult.of({"fire": True, "permissions": form}).permissions
    assert read == PermissionSet.from_json(form)
    with pytest.raises(UsageError):
        AutomationResult.of({"fire": True, "permissions": "full"})
