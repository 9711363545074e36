"""A file is checked by reading it: nothing of it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.core.errors import UsageError
from relay.features.automations.source_check import check

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
        (
            HEAD + FINE.replace(")\n", ",\n    schedule={'every': 'often'},\n)\n"),
            9,
            "every",
        ),
        (HEAD + FINE.replace(")\n", ",\n    triggers={'event': {'kind': 'x'}})\n"), 9, "kind"),
    ],
)
def test_a_mistake_is_told_with_its_line(source: str, line: int | None, mistake: str) -> None:
    with pytest.raises(UsageError) as told:
        check(source, "a.py")
    place = f"a.py:{line}: " if line is not None else "a.py has no"
    assert told.value.message.startswith(place) and mistake in told.value.message
