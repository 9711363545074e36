"""What features add to a session, and what becomes of one that fails."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from relay.agents.hook_codec import AgentHookCall
from relay.config.settings import Settings
from relay.core import features as installed
from relay.core.features import Feature
from relay.core.message import AgentState
from relay.hooks.events import HookEventName
from relay.hooks.registry import Registry
from relay.session.door import SessionFacts, SessionFeature, SessionFeatures
from relay.session.feature_parts import FeatureParts, SessionModules
from relay.session.session_commands import FeatureCommand, PersonNote
from relay.session.session_events import EventQueue

CALL = AgentHookCall(HookEventName.BEFORE_TOOL, {"tool_name": "Write"}, waits=True)
GOOD = """
from relay.session.door import SessionFeature


def register(registry, facts):
    registry.add_pattern("good", "*", print)


def feature(parts):
    return SessionFeature()
"""


def facts(**hello: Any) -> SessionFacts:
    return SessionFacts("claude", {}, hello, Settings())


def parts(**hello: Any) -> FeatureParts:
    no = cast(Any, None)
    return FeatureParts(facts(**hello), no, no, no, no, no, no, no, {})


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SessionModules:
    """Of one feature that works, one that cannot be imported, and one that cannot be opened."""
    texts = {"good": GOOD, "torn": "import there_is_no_such_module\n", "bad": GOOD + "    1 / 0\n"}
    texts["bad"] = GOOD.replace("return SessionFeature()", "1 / 0")
    for name, text in texts.items():
        folder = tmp_path / f"door_{name}"
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "session.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    rows = [Feature(name, f"door_{name}") for name in texts]
    monkeypatch.setattr(installed, "installed", lambda: iter(rows))
    for name in list(sys.modules):
        if name.startswith("door_"):
            monkeypatch.delitem(sys.modules, name)
    return SessionModules()


def test_a_feature_that_fails_is_named_and_the_others_work(
    modules: SessionModules, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = Registry()
    modules.register(registry, facts())
    assert registry.namespaces() == {"good"}
    assert list(modules.open(parts())) == ["good"]
    torn, bad = modules.problems
    assert "the feature torn could not be loaded" in torn and "there_is_no_such_module" in torn
    assert bad == "the feature bad could not be opened: ZeroDivisionError: division by zero"
    logged = capsys.readouterr().err
    assert logged.count("Traceback") == 2


@pytest.mark.parametrize("guard", ["bad", "torn", "away"])
def test_no_tool_runs_where_a_feature_that_guards_the_run_is_missing(
    modules: SessionModules, guard: str
) -> None:
    opened = modules.open(parts(guards=["good", guard]))
    assert list(opened) == ["good", guard]
    why = asyncio.run(opened[guard].before(CALL, 10.0))
    assert f"no tool runs, because the feature {guard}" in why
    assert asyncio.run(opened["good"].before(CALL, 10.0)) == ""


class Faulty(SessionFeature):
    namespace = "faulty"

    def take(self, command: FeatureCommand) -> None:
        raise ValueError("take")

    def state_changed(self, state: AgentState) -> None:
        raise ValueError("state_changed")

    def state(self) -> Any:
        raise ValueError("state")


class Sound(SessionFeature):
    def __init__(self) -> None:
        self.states: list[AgentState] = []

    def state_changed(self, state: AgentState) -> None:
        self.states.append(state)

    def state(self) -> Any:
        return len(self.states)


def test_a_fault_in_a_feature_is_noted_and_harms_no_other() -> None:
    queue, sound = EventQueue(), Sound()
    features = SessionFeatures(queue)
    features.use({"faulty": Faulty(), "sound": sound})
    features.take("faulty", FeatureCommand("1", "do", ""))
    features.state_changed(AgentState.BUSY)
    assert features.state() == {"sound": 1} and sound.states == [AgentState.BUSY]
    for method in ("take", "state_changed", "state"):
        note = queue.take()
        assert isinstance(note, PersonNote) and note.text.endswith(f"ValueError: {method}")
