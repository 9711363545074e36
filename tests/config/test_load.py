from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import pytest

from relay.config import load as module
from relay.config.load import LoadedConfig, executing_config, load, load_for_session
from relay.config.settings import keys
from relay.config.trust import CONFIG_NAME, read_config, trust, user_config
from relay.core.errors import ConfigError
from relay.core.paths import Home
from relay.hooks.events import EVENTS, HookEventName
from relay.hooks.hook_types import Aggregated, CallOutcome, HookOutput
from relay.hooks.run_functions import FunctionRunner
from tests.hooks.fakes import FakeActions, context, engine

ROOT = Path(__file__).parents[2]
RELAY = "from relay import Relay\nr = Relay()\n"


@pytest.fixture
def home(isolated_home: Path) -> Home:
    return Home(str(isolated_home))


Load = Callable[[str], LoadedConfig]


@pytest.fixture
def loads(tmp_path: Path) -> Load:
    """Loads a text as if it were a trusted relay.config.py."""

    def run(text: str) -> LoadedConfig:
        path = tmp_path / CONFIG_NAME
        path.write_text(text)
        return load(read_config(str(path)))

    return run


def _error(loads: Load, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        loads(text)
    return caught.value


T = TypeVar("T")


def _run(loaded: LoadedConfig, scenario: Callable[[FunctionRunner], Awaitable[T]]) -> T:
    async def whole() -> T:
        runner = FunctionRunner(loaded.registry, timeout=loaded.settings.handler_timeout)
        try:
            return await scenario(runner)
        finally:
            await runner.close()

    return asyncio.run(whole())


def _fire(
    loaded: LoadedConfig,
    event: HookEventName,
    fields: Mapping[str, object],
    actions: FakeActions | None = None,
) -> Aggregated:
    """What the hooks of ``event`` say, run as a session runs them."""

    async def fire(functions: FunctionRunner) -> Aggregated:
        hooks = engine(loaded.registry, functions, actions or FakeActions())
        return await hooks.fire(event, fields)

    return _run(loaded, fire)


def test_dictionaries_and_decorators_are_the_same(loads: Load) -> None:
    by_dictionary = loads(
        "def f(target): return target\n"
        "def g(ctx): return None\n"
        "config = {'idle_seconds': 60, 'timeout': 5, 'task': 't',\n"
        "  'patterns': {'deploy:prod-*': {'handler': f, 'timeout': 9, 'override': True}},\n"
        "  'hooks': {'onIdle': {'handler': g, 'priority': 3}}}\n"
    )
    by_decorator = loads(
        "from relay import Relay\n"
        "relay = Relay(idle_seconds=60, timeout=5, task='t')\n"
        "@relay.pattern('deploy:prod-*', timeout=9, override=True)\n"
        "def f(target): return target\n"
        "@relay.on('idle', priority=3)\n"
        "def g(ctx): return None\n"
    )
    for loaded in (by_dictionary, by_decorator):
        assert loaded.settings.idle_seconds == 60.0
        assert loaded.settings.handler_timeout == 5.0
        assert loaded.settings.task == "t"
        assert loaded.settings.given == {"idle_seconds", "timeout", "task"}
        (pattern,) = loaded.registry.patterns()
        assert (pattern.namespace, pattern.target, pattern.override) == ("deploy", "prod-*", True)
        assert pattern.callee.timeout == 9.0
        (hook,) = loaded.registry.all_hooks()
        assert (hook.event, hook.priority) == (HookEventName.IDLE, 3)
        assert hook.callee is not None and hook.callee.name.endswith("[relay.config.py]")
        assert loaded.warnings == ()


def test_the_same_at_the_top_level_in_lists_and_mixed(loads: Load) -> None:
    loaded = loads(
        "from relay import Relay\n"
        "r = Relay()\n"
        "r.on('idle', lambda ctx: 'decorated')\n"
        "config = {'idleSeconds': 5, 'hooks': {'on_idle': lambda ctx: 'config'}}\n"
        "hooks = {'idle': [lambda ctx: 'one', {'handler': lambda ctx: 'two'}]}\n"
        "patterns = {'relay': 'builtin', 'a': lambda: 'x'}\n"
    )
    assert loaded.settings.idle_seconds == 5.0
    assert [entry.namespace for entry in loaded.registry.patterns()] == ["a"]
    assert _fire(loaded, HookEventName.IDLE, {}).inject == ["decorated", "config", "one", "two"]


def test_nothing_is_given_by_default(tmp_path: Path, home: Home) -> None:
    loaded = load_for_session(home, str(tmp_path))
    assert (loaded.path, loaded.sha256, loaded.untrusted) == (None, None, None)
    assert (loaded.settings.idle_seconds, loaded.settings.handler_timeout) == (30.0, 30.0)
    assert loaded.registry.namespaces() == frozenset()


def test_an_untrusted_file_is_not_run_and_a_changed_one_not_either(
    tmp_path: Path, home: Home
) -> None:
    path, ran = tmp_path / CONFIG_NAME, tmp_path / "ran"
    path.write_text(f"open({str(ran)!r}, 'a').close()\npatterns = {{'a': lambda: None}}\n")
    loaded = load_for_session(home, str(tmp_path))
    assert loaded.untrusted == str(path)
    assert loaded.registry.patterns() == []
    assert not ran.exists()
    trust(home, str(path))
    loaded = load_for_session(home, str(tmp_path))
    assert (loaded.untrusted, loaded.path) == (None, str(path))
    assert loaded.registry.namespaces() == {"a"}
    assert ran.exists()
    ran.unlink()
    path.write_text(path.read_text() + "\n")
    assert load_for_session(home, str(tmp_path)).untrusted == str(path)
    assert not ran.exists()


def test_what_runs_are_the_bytes_that_were_hashed(tmp_path: Path) -> None:
    path = tmp_path / CONFIG_NAME
    path.write_text("hooks = {'idle': lambda ctx: 'first'}\n")
    file = read_config(str(path))
    path.write_text("raise SystemExit('the file has changed on disk')\n")
    assert len(load(file).registry.all_hooks()) == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x = 1\n# caf\xe9\n", ":2: this is not UTF-8"),
        (b"x = 1\0", ":1: this is not UTF-8"),
        ("x = 1\n".encode("utf-16"), r"not UTF-8 \(it looks like UTF-16\)"),
    ],
)
def test_bytes_that_are_no_text_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / CONFIG_NAME
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        load(read_config(str(path)))
    path.write_bytes(b"# coding: latin-1\nx = '\xe9'\n")
    load(read_config(str(path)))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("config = {'pattens': {}}", "unknown key 'pattens' in config", "'patterns'"),
        ("config = {'idleSecond': 3}", "unknown key 'idleSecond'", "'idle_seconds'"),
        ("config = {'name': 'Bob'}", "unknown key 'name'", "relay wrap --name"),
        ("config = {3: 4}", "unknown key 3", ""),
        ("config = []", "config must be a dictionary, not list", ""),
        ("patterns = []", "patterns must be a dictionary", ""),
        ("hooks = {3: print}", "a key of hooks must be a string", ""),
        ("patterns = {'a': {'handeler': print}}", "unknown key 'handeler'", "'handler'"),
        ("patterns = {'a': {'override': True}}", 'no "handler"', "handler"),
        ("patterns = {'a': 'bultin'}", "is the string 'bultin'", "builtin"),
        ("patterns = {'rely': 'builtin'}", "no built-in handler for 'rely'", "'relay'"),
        ("patterns = {'a': 3}", "cannot be called: it is int", "function"),
        ("patterns = {'A': print}", "'A' cannot be a namespace", "'a'"),
        ("patterns = {'a:': print}", "cannot be the target", ""),
        ("hooks = {'on_idel': print}", "unknown event 'on_idel'", "'on_idle'"),
        ("hooks = {'idel': print}", "unknown event 'idel'", "'on_idle'"),
        ("hooks = {'on_idle': 'echo hi'}", "cannot be called: it is str", '"command"'),
        (
            RELAY + "Relay(idle_secnds=3)",
            "key 'idle_secnds' in Relay()",
            "idle_seconds",
        ),
        (f"{RELAY}@r.pattern\ndef f(): ...", "@relay.pattern does not say", '("deploy")'),
        (f"{RELAY}@r.on\ndef f(): ...", "@relay.on does not say", '("idle")'),
        (f"{RELAY}@r.on('idle', priorty=1)\ndef f(): ...", "unknown key 'priorty'", "priority"),
        ("hooks = {'before_tool': {'matcher': 'Bash'}}", 'no "handler"', ""),
        ("hooks = {'before_tool': {'command': 3}}", "the command is 3", "program"),
        ("hooks = {'on_idle': {'handler': print, 'url': 'x'}}", "more than one of", ""),
        ("hooks = {'on_idle': {'url': 'ftp://x'}}", "begin with http://", ""),
        ("config = {'hook_files': 3}", "hook_files must be a list of paths", ""),
        ("hooks = {'on_idle': {'priority': 1}}", 'no "handler"', ""),
        ("hooks = {'on_idle': lambda a, b: 1}", "requires 'b'", "def handler(ctx, event)"),
        ("config = {'idle_seconds': 0}", "idle_seconds must be a number of seconds", ""),
        ("config = {'timeout': '5'}", "timeout must be a number of seconds", ""),
        ("config = {'timeout': float('nan')}", "timeout must be a number of seconds", ""),
        ("config = {'task': 5}", "task must be a string", ""),
        ("from relay import Relay\na = Relay()\nb = Relay()", "more than one Relay()", ""),
    ],
)
def test_a_mistake_names_the_word_and_what_would_be_right(
    loads: Load, text: str, message: str, hint: str
) -> None:
    error = _error(loads, text + "\n")
    assert error.message.startswith("/")
    assert message in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero: 1 / 0", "config check"),
        ("import sys; sys.exit(3)", "it calls exit()", "remove"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", ""),
        (
            "import no_such_module_x",
            "imports 'no_such_module_x', which is not installed",
            "install",
        ),
        ("from relay import Relay; Relay().on('sunset', print)", "unknown event 'sunset'", ""),
        ("from relay import Relay; Relay().wrap('true')", "wrap() is called while", "__main__"),
    ],
)
def test_what_fails_while_it_runs_shows_its_line(
    loads: Load, tmp_path: Path, text: str, message: str, hint: str
) -> None:
    error = _error(loads, f"x = 1\n{text}\n")
    assert error.message.startswith(f"{tmp_path / CONFIG_NAME}:2: ")
    assert message in error.message
    assert hint in error.hint


def test_a_file_that_never_ends_is_given_up(tmp_path: Path) -> None:
    gate = threading.Event()
    path = tmp_path / CONFIG_NAME
    # A module of the standard library hands the event to the file.
    path.write_text("import threading\nthreading.config_gate.wait()\n")
    threading.config_gate = gate  # type: ignore[attr-defined]
    try:
        with pytest.raises(ConfigError, match=r"did not end within 0\.05 s"):
            load(read_config(str(path)), timeout=0.05)
    finally:
        gate.set()
        del threading.config_gate  # type: ignore[attr-defined]
    assert not executing_config()


def test_what_it_prints_goes_to_stderr(loads: Load, capsys: pytest.CaptureFixture[str]) -> None:
    loads("print('loading')\nhooks = {'idle': lambda ctx: None}\n")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "loading\n")


def test_dataclasses_and_a_main_guard_work(loads: Load) -> None:
    loaded = loads(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from relay import Relay\n"
        "@dataclass\nclass A:\n    x: int = 0\n"
        "relay = Relay(name='Alice')\n"
        "same = relay\n"
        "@relay.on('idle')\ndef idle(ctx): return str(A(1).x)\n"
        "if __name__ == '__main__':\n    relay.wrap('true')\n"
    )
    assert len(loaded.registry.all_hooks()) == 1


def test_modules_beside_the_file_cannot_be_imported(loads: Load, tmp_path: Path) -> None:
    (tmp_path / "beside_the_config.py").write_text("")
    assert "not installed" in _error(loads, "import beside_the_config\n").message


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("hook = {'on_idle': print}\nconfig = {'mcp': True}", "line 1: nothing reads hook;"),
        ("x = 1\ntimeout = 5", 'line 2: nothing reads timeout; write config = {"timeout": …}'),
        ("timeout = 5\nconfig = {'timeout': timeout}", ""),
    ],
)
def test_a_name_of_relays_that_nothing_reads_is_told(loads: Load, text: str, warning: str) -> None:
    warnings = loads(text + "\n").warnings
    assert warning in " ".join(warnings) if warning else not warnings


def test_what_counts_only_in_the_persons_own_file_does_not_count_elsewhere(
    home: Home, tmp_path: Path
) -> None:
    own, project = Path(user_config()), tmp_path / CONFIG_NAME
    own.parent.mkdir(parents=True)
    own.write_text("config = {'redact': False}\n")
    project.write_text("config = {'redact': True, 'caps': {'Bob': 5}, 'mcp': True}\n")
    for path in (own, project):
        trust(home, str(path))
    loaded = load_for_session(home, str(tmp_path))
    assert loaded.settings.redact is False and loaded.settings.mcp
    assert loaded.origins == {"redact": str(own), "mcp": str(project)}
    (warning,) = loaded.warnings
    assert warning.startswith(f"{project} sets caps, redact, which count only in your own file")


def test_a_file_that_registers_nothing_says_so(loads: Load) -> None:
    assert loads("x = 1\n").warnings == ("it registers and sets nothing",)
    assert loads("config = {'idle_seconds': 5}\n").warnings == ()
    (warning,) = loads("def on_idle(ctx): pass\n").warnings
    assert "on_idle() is defined but not registered" in warning


def test_a_handlers_traceback_shows_the_files_line(loads: Load) -> None:
    loaded = loads("def f(ctx):\n    raise ValueError('here')\nhooks = {'idle': f}\n")
    (result,) = _fire(loaded, HookEventName.IDLE, {}).results
    assert result.error == "ValueError: here (line 2 in f)"
    assert "raise ValueError('here')" in result.trace


# -- the example and the documentation


@pytest.fixture(scope="module")
def example() -> Iterator[LoadedConfig]:
    yield load(read_config(str(ROOT / "relay.config.example.py")))


def test_the_example_has_every_event_and_both_kinds_of_handlers(example: LoadedConfig) -> None:
    patterns, hooks = example.registry.patterns(), example.registry.all_hooks()
    callees = [one.callee for one in patterns] + [one.callee for one in hooks if one.callee]
    assert {hook.event for hook in hooks} == {
        event for event, spec in EVENTS.items() if not (spec.of_model or spec.of_broker)
    }
    assert {callee.is_async for callee in callees} == {True, False}
    assert {hook.kind for hook in hooks} == {"function", "command"}
    assert example.settings.given == {"idle_seconds", "timeout", "task", "memory"}


@pytest.mark.parametrize(
    ("match", "injected", "done"),
    [
        (
            ("deploy", "staging", "v1"),
            ["staging: deployed v1", "Known targets: staging, prod-*. You wrote staging."],
            [],
        ),
        (
            ("deploy", "prod-eu", "v1"),
            ["prod-eu needs a person; I have asked one."],
            [("notify", "deployments", "Alice asks to deploy prod-eu")],
        ),
        (("deploy", "moon", ""), ["Known targets: staging, prod-*. You wrote moon."], []),
        (("relay", "everybody", "hello"), [], [("send", "*", "hello", None, None)]),
        (("who", "x", ""), ["Bob, Eve"], []),
        (("note", "x", "remember"), [], [("notify", "notes", "remember")]),
    ],
)
def test_every_pattern_of_the_example_runs(
    example: LoadedConfig,
    match: tuple[str, str, str],
    injected: list[str],
    done: list[tuple[object, ...]],
) -> None:
    there = [{"name": "Bob", "state": "idle"}, {"name": "Eve", "state": "busy"}]
    actions = FakeActions([*there, {"name": "Old", "state": "gone"}])

    async def run(runner: FunctionRunner) -> list[CallOutcome[HookOutput]]:
        return await runner.run_pattern(*match, context(actions))

    outcomes = _run(example, run)
    assert [outcome.error for outcome in outcomes if not outcome.ok] == []
    assert [text for outcome in outcomes if outcome.result for text in outcome.result.inject] == (
        injected
    )
    assert actions.done == done


@pytest.mark.parametrize(
    ("event", "fields", "injected", "kinds"),
    [
        (
            HookEventName.SESSION_START,
            {"source": "startup"},
            ["announced as ID"],
            ["inject", "send"],
        ),
        (HookEventName.OUTPUT, {"output": "an ERROR"}, [], ["notify"]),
        (HookEventName.OUTPUT, {"output": "fine"}, [], []),
        (HookEventName.MESSAGE_RECEIVED, {"sender": "Bob", "body": "ping"}, [], ["send"]),
        (HookEventName.IDLE, {"idle_seconds": 30.0}, [], []),
        (HookEventName.SESSION_END, {"reason": "exit"}, [], ["notify"]),
    ],
)
def test_every_hook_of_the_example_runs(
    example: LoadedConfig,
    event: HookEventName,
    fields: dict[str, object],
    injected: list[str],
    kinds: list[str],
) -> None:
    actions = FakeActions()
    said = _fire(example, event, fields, actions)
    assert [result.error for result in said.results if not result.success] == []
    # Hooks of one event run side by side, so that nothing says which id comes first.
    assert [text.rstrip("0123456789") for text in said.inject] == injected
    assert sorted(str(what[0]) for what in actions.done) == kinds  # they run side by side


def _blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.M | re.S)


@pytest.mark.parametrize(
    "block",
    [
        block
        for page in ("config", "hooks", "tools", "trail", "memory")
        for block in _blocks(f"{page}.md")
        if "= LocalStore(" not in block  # the library's: tests/features/memory/test_docs.py runs it
    ],
)
def test_every_example_of_the_documentation_loads(loads: Load, block: str, tmp_path: Path) -> None:
    (tmp_path / "check.sh").write_text("")
    loaded = loads(block)
    assert loaded.warnings == ()


_ROUTES = """
from relay import Relay
relay = Relay(merge="same_session")

@relay.route
def plain(event): ...

@relay.route("named", kinds=["timer_tick"], channels="mail", priority=5, timeout=2)
async def other(event): ...
"""
_ROUTES_AS_TABLES = """
def plain(event): ...
async def other(event): ...
config = {"merge": "same_session"}
routes = {
    "plain": plain,
    "named": {"handler": other, "kinds": ["timer_tick"], "channels": ["mail"], "priority": 5,
              "timeout": 2},
}
"""


@pytest.mark.parametrize("text", [_ROUTES, _ROUTES_AS_TABLES], ids=["decorator", "table"])
def test_route_functions_are_registered_in_both_ways(loads: Load, text: str) -> None:
    loaded = loads(text)
    named, plain = loaded.registry.routes()  # the higher priority first
    assert (named.name, named.callee.timeout, named.callee.is_async) == ("named", 2.0, True)
    assert [named.wants(kind, "mail") for kind in ("timer_tick", "message")] == [True, False]
    assert not named.wants("timer_tick", "relay")
    # Unasked nothing is told of every line of output, and the clock does not tick.
    assert [plain.wants(k, "x") for k in ("message", "output", "timer_tick")] == [
        True,
        False,
        False,
    ]
    found = module.manifest_of(loaded).settings
    assert found["merge"] == "same_session"
    assert found["routes"] == [
        {"name": "named", "kinds": ["timer_tick"], "channels": ["mail"], "priority": 5},
        {"name": "plain", "kinds": None, "channels": None, "priority": 0},
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("relay.route('a b', kinds=['timer_tick'])(print)", "cannot be the name"),
        ("relay.route('a', kinds=[])(len)", "kinds must be a list of words"),
        ("relay.route('a')(len); relay.route('a')(len)", "two routes 'a'"),
        ("relay.route('a')(lambda one, two: 1)", "cannot be called"),
        ("relay.route('a', priority='high')(len)", "priority must be a whole number"),
        ("relay.adapter('relay')(print)", "cannot be the name of a channel"),
        (
            "relay.adapter('a').send(print); relay.adapter('a').send(print)",
            "two functions for send",
        ),
        ("relay.adapter('a')(print)", "is not async"),
        ("relay.adapter('a').send(lambda a, b, c: 1)", "cannot be called"),
    ],
    ids=[
        *("name", "kinds", "twice", "parameters", "priority"),
        *("channel", "channel-twice", "channel-async", "send"),
    ],
)
def test_a_wrong_route_or_channel_is_a_mistake_with_its_line(
    loads: Load, line: str, says: str
) -> None:
    error = _error(loads, f"from relay import Relay\nrelay = Relay()\n{line}\n")
    assert says in error.message
    assert ":3: " in error.message


def test_the_route_functions_of_the_documentation_load(loads: Load) -> None:
    page = (ROOT / "docs" / "broker.md").read_text()
    first, second = re.findall(r"```python\n(.*?)```", page, re.S)[:2]
    assert [one.name for one in loads(first).registry.routes()] == ["codes"]
    before = "from relay import *\nrelay = Relay()\n"
    assert [one.name for one in loads(before + second).registry.routes()] == ["night", "urgent"]


def test_every_key_and_every_event_is_documented() -> None:
    config_page = (ROOT / "docs" / "config.md").read_text()
    hooks_page = (ROOT / "docs" / "hooks.md").read_text()
    for key in keys():
        assert f"| `{key}` |" in config_page
    for event, spec in EVENTS.items():
        assert f"| `{event.registration}` | `{', '.join(spec.offered)}` |" in hooks_page


def test_hook_files_that_cannot_be_read_are_named_and_cost_nothing_else(loads: Load) -> None:
    loaded = loads("config = {'hook_files': ['missing.json'], 'idle_seconds': 5}\n")
    [problem] = loaded.hook_problems
    assert "missing.json" in problem
    assert problem.endswith("so its hooks do not run")
    assert loaded.settings.idle_seconds == 5
