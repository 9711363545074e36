"""What agents may say to trail; the real program is in tests/real_agents/test_trail.py."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from relay.app import Relay
from relay.hooks.functions import FunctionRunner
from relay.hooks.results import Result
from relay.integrations import trail
from tests.hooks.fakes import FakeActions, context

#: Writes its arguments down, a line for each, and says a word.
FAKE = '#!/bin/sh\nprintf "%s\\n" "$*" >>"$(dirname "$0")/asked"\necho "said $3"\n'


@pytest.fixture
def program(tmp_path: Path, isolated_home: Path) -> str:
    path = tmp_path / "trail"
    path.write_text(FAKE)
    path.chmod(0o755)
    return str(path)


def say(relay: Relay, target: str, message: str) -> Result | None:
    async def run() -> Result | None:
        runner = FunctionRunner(relay.registry)
        ctx = context(FakeActions())
        [outcome] = await runner.run_pattern("trail", target, message, ctx)
        await runner.close()
        assert outcome.ok, outcome.error
        return outcome.result

    return asyncio.run(run())


def test_each_verb_takes_its_text_as_data(program: str, tmp_path: Path) -> None:
    relay = Relay()
    trail.use(relay, program=program, data_dir="/somewhere/{agent}")
    said = say(relay, "decision", "--quiet; $(reboot)")
    assert said == Result(("said decision",))
    say(relay, "complete", "--all of it")
    assert (tmp_path / "asked").read_text().splitlines() == [
        "--data-dir /somewhere/Alice decision -- --quiet; $(reboot)",
        "--data-dir /somewhere/Alice complete --summary=--all of it",
    ]


def test_mistakes_are_answered_without_asking_trail(program: str, tmp_path: Path) -> None:
    relay = Relay()
    trail.use(relay, program=program)
    unknown, empty = say(relay, "phase", "planning"), say(relay, "reflect", " ")
    assert unknown is not None and "not phase" in unknown.inject[0]
    assert empty == Result(("@trail:reflect needs a text",))
    assert not (tmp_path / "asked").exists()


def test_what_trail_refuses_reaches_the_agent(program: str) -> None:
    Path(program).write_text("#!/bin/sh\necho 'at x.js:3\nError: nothing is active' >&2\nexit 1\n")
    relay = Relay()
    trail.use(relay, program=program)
    assert say(relay, "reflect", "so far") == Result(("trail: nothing is active",))


def test_an_end_that_is_unknown_is_refused() -> None:
    with pytest.raises(trail.TrailError, match="at_end"):
        trail.use(Relay(), at_end="forget")
