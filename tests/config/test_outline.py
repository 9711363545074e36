from __future__ import annotations

from pathlib import Path

import pytest

from relay.config.outline import COMPUTED, Outline, outline
from relay.config.trust import CONFIG_NAME, ConfigFile, read_config
from relay.core.errors import ConfigError


def _outline(text: str) -> Outline:
    return outline(ConfigFile(f"/nowhere/{CONFIG_NAME}", text.encode()))


def test_both_ways_of_writing_are_read_without_running_anything() -> None:
    found = _outline(
        "raise SystemExit\n"
        "relay = Relay(idle_seconds=5)\n"
        "@relay.pattern('deploy:staging')\n"
        "async def f(): ...\n"
        "relay.on('sessionStart', f)\n"
        "patterns: dict = {'note': f, 'relay': 'builtin'}\n"
        "hooks = {'onIdle': [f, {'handler': f}]}\n"
        "config = {'timeout': 2 * 2, 'task': 'x', 'patterns': {'who': f}, 'hooks': {'output': f}}\n"
    )
    assert sorted(found.patterns) == ["deploy:staging", "note", "relay", "who"]
    assert sorted(found.hooks) == ["on_idle", "on_output", "on_session_start"]
    assert (found.settings.idle_seconds, found.settings.task) == (5.0, "x")
    assert found.computed == ["timeout"]
    assert found.problems == []


def test_what_is_only_known_when_it_runs_is_called_so() -> None:
    found = _outline(
        "patterns = make()\nhooks = dict(a=1)\nr.pattern(key)(f)\nr.on(key, f)\nconfig = {key: 1}\n"
    )
    assert (found.patterns, found.hooks) == ([COMPUTED] * 2, [COMPUTED] * 2)
    assert found.computed == [COMPUTED]


def test_memory_at_the_top_is_read_and_a_handler_of_that_name_is_not() -> None:
    assert _outline("memory = {'backend': 'mem0'}\n").settings.memory.backend == "mem0"
    assert _outline("memory = {'backend': where()}\n").computed == ["memory"]
    assert _outline("memory = make()\n") == Outline()


def test_other_calls_of_the_same_names_are_not_mistaken() -> None:
    assert _outline("re.compile('x').pattern()\nx().on('idle', f)\nlight.on()\n") == Outline()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("config = {'pattens': {}}", "line 2: unknown key 'pattens' in config (did you mean"),
        ("hooks = {'on_idel': f}", "line 2: unknown event 'on_idel' (did you mean"),
        ("hooks = {'idle': {'prio': 1, 'handler': f}}", "unknown key 'prio'"),
        ("patterns = {'Deploy': f}", "'Deploy' cannot be a namespace"),
        ("patterns = {'a': 'bultin'}", "cannot be the string 'bultin'"),
        ("patterns = {'memori': 'builtin'}", "no built-in handler for 'memori'"),
        ("patterns = {'a': {'handeler': f}}", "unknown key 'handeler'"),
        ("config = {'idle_seconds': -1}", "idle_seconds must be seconds"),
        ("config = {'idleSeconds': 1, 'idle_seconds': 2}", "config has 'idle_seconds' twice"),
        ("memory = {'backend': 'mem'}", "there is no backend 'mem'"),
        ("config = {'memory': {}}; memory = {}", "memory is given twice"),
        ("r = Relay(timeout='x')", "timeout must be seconds"),
        ("r.on('sunset', f)", "unknown event 'sunset'"),
    ],
)
def test_mistakes_are_found_with_their_line(text: str, problem: str) -> None:
    (found,) = _outline(f"\n{text}\n").problems
    assert found.startswith("line 2: ")
    assert problem in found


def test_a_syntax_error_is_an_error() -> None:
    with pytest.raises(ConfigError, match=":2: "):
        _outline("x = 1\nhooks = {\n")


def test_the_example_has_no_problem_and_nothing_computed() -> None:
    root = Path(__file__).parents[2]
    found = outline(read_config(str(root / "relay.config.example.py")))
    assert (found.problems, found.computed) == ([], [])
    assert len(found.hooks) == 12
    assert COMPUTED not in found.patterns + found.hooks
