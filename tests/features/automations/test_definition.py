"""What a file and the settings may say of an automation, when its clock strikes, and what its
handler may return.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest

from relay.config.settings import Settings, with_setting
from relay.core.dispatch import PermissionSet, PersonType
from relay.core.errors import ConfigError, UsageError
from relay.features.automations.definition import (
    MISSED_MAX,
    Automation,
    AutomationResult,
    Definition,
    Principal,
    Schedule,
    Triggers,
)
from relay.features.automations.settings import AUTOMATIONS, LLM, AutomationSettings
from relay.features.automations.source_check import check

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
        ({"name": "minute", "schedule": {"every": "1h"}}, "choose another name"),
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


def test_automations_and_their_model_are_checked() -> None:
    settings = with_setting(Settings(), "automations", {"agents": False})
    settings = with_setting(settings, "llm", {"command": "claude"})
    assert settings.of(AUTOMATIONS) == AutomationSettings(agents=False, workers=4)
    llm = settings.of(LLM)
    assert llm is not None and llm["command"] == ["claude"]
    for value, why in (
        ({"workers": 0}, "workers must be 1 or more, not 0"),
        ({"agents": "no"}, "agents must be True or False"),
        ({"worker": 1}, "unknown key 'worker' in automations"),
        (True, "must be a dictionary"),
    ):
        with pytest.raises(ConfigError, match=why):
            with_setting(Settings(), "automations", value)


BERLIN = ZoneInfo("Europe/Berlin")


def ms(text: str, zone: tzinfo = UTC) -> int:
    at = datetime.fromisoformat(text)
    return int((at if at.tzinfo else at.replace(tzinfo=zone)).timestamp() * 1000)


def ticks(schedule: dict[str, str], after: str, count: int, zone: tzinfo = UTC) -> list[str]:
    """The next ``count`` ticks, in ``zone``."""
    found, at_ms = [], ms(after, zone)
    for _ in range(count):
        next_ms = Schedule.of(schedule).next_after(at_ms, zone)
        if next_ms is None:
            break
        at_ms = next_ms
        found.append(datetime.fromtimestamp(at_ms / 1000, zone).strftime("%d %H:%M:%S %z"))
    return found


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("15m", 900), ("1h30m", 5400), ("2d", 172_800), ("1w", 604_800), ("1h 5s", 3605)],
)
def test_every_has_units(text: str, seconds: int) -> None:
    assert Schedule.of({"every": text}).next_after(1000, UTC) == 1000 + seconds * 1000


def test_a_time_zone_is_this_machines_unless_one_is_named() -> None:
    nine = {"cron": "0 9 * * 1-5"}
    assert ticks(nine, "2026-02-06T10:00", 1, BERLIN) == ["09 09:00:00 +0100"]  # a Monday
    assert ticks(nine | {"timezone": "Asia/Tokyo"}, "2026-02-06T10:00", 1) == ["09 00:00:00 +0000"]
    at = Schedule.of({"at": "2026-02-05T10:00", "timezone": "Europe/Berlin"})
    assert at.next_after(0, UTC) == ms("2026-02-05T09:00")
    own = Schedule.of({"at": "2026-02-05T10:00-05:00", "timezone": "Europe/Berlin"})
    assert own.next_after(0, UTC) == ms("2026-02-05T15:00")


def test_a_time_that_the_change_of_the_clocks_leaves_out_comes_once_right_after_it() -> None:
    found = ticks({"cron": "30 2 * * *"}, "2026-03-28T12:00", 2, BERLIN)
    assert found == ["29 03:00:00 +0200", "30 02:30:00 +0200"]
    at = Schedule.of({"at": "2026-03-29T02:30"}).next_after(0, BERLIN)
    assert at == ms("2026-03-29T03:30", BERLIN)


def test_a_time_that_comes_twice_strikes_once_and_short_steps_go_on() -> None:
    found = ticks({"cron": "30 2 * * *"}, "2026-10-24T12:00", 2, BERLIN)
    assert found == ["25 02:30:00 +0200", "26 02:30:00 +0100"]
    steps = ticks({"cron": "*/30 * * * *"}, "2026-10-25T02:10", 4, BERLIN)
    assert steps == [f"25 {one}" for one in (
        "02:30:00 +0200", "02:00:00 +0100", "02:30:00 +0100", "03:00:00 +0100"
    )]  # fmt: skip


@pytest.mark.parametrize(
    ("schedule", "missed", "follows"),
    [
        ({"every": "1h"}, 10, "2026-02-05T19:00"),
        ({"cron": "0 */2 * * *"}, 5, "2026-02-05T20:00"),
        ({"cron": "* * * * * *"}, MISSED_MAX, "2026-02-05T18:30:01"),
    ],
    ids=["every", "cron", "too_many"],
)
def test_what_was_missed_is_counted_and_left_out(
    schedule: dict[str, str], missed: int, follows: str
) -> None:
    due, now = ms("2026-02-05T08:00"), ms("2026-02-05T18:30")
    assert Schedule.of(schedule).after_tick(due, now, UTC) == (ms(follows), missed)


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        ("5m", "must be a dictionary"),
        ({}, "one of every, cron and at"),
        ({"every": "5m", "cron": "* * * * *"}, "one of every, cron and at"),
        ({"daily": "9"}, "has no 'daily'"),
        ({"every": 5}, "must be a text"),
        ({"every": "5 parsecs"}, "such as 30s"),
        ({"every": "0s"}, "from 1s"),
        ({"every": "1" * 5000 + "s"}, "cannot be"),
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"cron": "* * *"}, "Wrong number"),
        ({"cron": "0 0 30 2 *"}, "Bad day-of-month"),
        ({"cron": "* * */20 * 1L"}, "never comes"),
        ({"cron": "0," * 500 + "0 * * * *"}, "more than 200"),
        ({"at": "tomorrow"}, "cannot be 'tomorrow'"),
        ({"every": "5m", "timezone": "Middle/Earth"}, "timezone cannot be"),
        ({"every": "5m", "timezone": "../../etc/passwd"}, "timezone cannot be"),
        ({"every": "5m", "timezone": 7}, "timezone cannot be"),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, dict) else "",
)
def test_what_is_no_schedule_is_refused_with_what_one_is(schedule: Any, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        Schedule.of(schedule)
    assert told in refused.value.line


# -- A file is checked by reading it: nothing of it runs.

EXAMPLES = Path(__file__).parents[3] / "examples" / "automations"
HEAD = "from relay import Automation\n\n\ndef handler(ctx):\n    return None\n\n\n"
FINE = "automation = Automation(name='a', description='b', handler=handler)\n"


@pytest.mark.parametrize(
    "source",
    [
        HEAD + FINE,
        "raise SystemExit\n" + HEAD + FINE,
        HEAD.replace("import Automation", "import Automation as A")
        + FINE.replace("Automation(", "A("),
        "import relay\n" + HEAD + FINE.replace("Automation(", "relay.Automation("),
        HEAD + "automation = {'name': 'a', 'description': 'b', 'handler': lambda ctx: None}\n",
        HEAD + "automation = Automation('a', 'b', handler)\n",
        HEAD + "given = {}\nautomation = Automation(name='a', **given)\n",
        HEAD + "automation = made()\n",
        "from elsewhere import *\n",
        "from elsewhere import automation\n",
        "try:\n    from elsewhere import automation\nexcept ImportError:\n    automation = None\n",
        HEAD + FINE.replace("'a'", "'a' + suffix"),
        "class handler:\n    def __init__(self, ctx): ...\nfrom relay import Automation\n" + FINE,
        f"x = {' + '.join('1' * 2000)}\n" + HEAD + FINE,
        HEAD + "automation = {'name': 'a', 'description': 'b'}\nautomation['handler'] = handler\n",
        HEAD.replace("(ctx)", "(a, ctx)") + "handler = partial(handler, 1)\n" + FINE,
        HEAD + "def made():\n    global automation\n    automation = 1\n",
        HEAD + FINE.replace("=handler", "=print"),
    ],
)
def test_what_may_be_right_passes(source: str) -> None:
    check(source, "a.py")


def test_the_agents_that_its_results_name_are_told() -> None:
    results = [
        "AutomationResult(fire=True, agent='bob')",
        "{'fire': True, 'agent': 'Atlas'}",
        "AutomationResult(fire=x, agent='bob')",
        "AutomationResult(fire=True, agent=names[0])",
        "{**x, 'fire': 1}",
        "{'agent': 'some data'}",
        "dict(agent='data')",
    ]
    source = HEAD.replace("return None", f"return [{', '.join(results)}]") + FINE
    assert check(source, "a.py") == ["Atlas", "bob"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_the_examples_pass(path: Path) -> None:
    check(path.read_text(), str(path))


@pytest.mark.parametrize(
    ("source", "line", "mistake"),
    [
        ("def handler(ctx)\n    pass\n", 1, "expected ':'"),
        ("x = 1\nreturn x\n", 2, "'return' outside function"),
        (HEAD, None, "a.py has no automation at its top"),
        (HEAD + "def made():\n    automation = 1\n", None, "a.py has no automation at its top"),
        (HEAD + FINE.replace("name", "nmae"), 8, "an automation has no 'nmae'"),
        (HEAD + FINE.replace("'a'", "'A b'"), 8, "an automation's name cannot be 'A b'"),
        (HEAD + "automation = Automation(name='a', handler=handler)\n", 8, "no description"),
        (HEAD + "automation = {'name': 'a'}\n", 8, "no description and no handler"),
        (HEAD + FINE.replace("=handler", "=handle"), 8, "there is no handle in this file"),
        (HEAD + FINE.replace("=handler", "='handler'"), 8, "the handler is not a function"),
        (HEAD.replace("(ctx)", "()") + FINE, 4, "the handler is called with one argument"),
        (HEAD.replace("(ctx)", "(a, b)") + FINE, 4, "the handler is called with one argument"),
        (HEAD + FINE.replace(")\n", ",\n    schedule={'every': 'often'},\n)\n"), 9, "every"),
        (HEAD + FINE.replace(")\n", ",\n    triggers={'event': {'kind': 'x'}})\n"), 9, "kind"),
    ],
)
def test_a_mistake_is_told_with_its_line(source: str, line: int | None, mistake: str) -> None:
    with pytest.raises(UsageError) as told:
        check(source, "a.py")
    place = f"a.py:{line}: " if line is not None else "a.py has no"
    assert told.value.message.startswith(place) and mistake in told.value.message


def test_all_mistakes_are_told_at_once() -> None:
    text = FINE.replace("'a'", "'A b'").replace(
        ")\n", ",\n    bloking=True,\n    deadline=900,\n)\n"
    )
    with pytest.raises(UsageError, match="a.py has 4 mistakes") as told:
        check(HEAD.replace("(ctx)", "()") + text, "a.py")
    lines = cast(list[str], told.value.details["mistakes"])
    assert [line.split(": ")[0] for line in lines] == ["a.py:8", "a.py:9", "a.py:10", "a.py:4"]
    assert "did you mean 'blocking'?" in lines[1]
