from __future__ import annotations

import os
import re
from pathlib import Path
from typing import cast

import pytest

from relay.cli import config_verbs, output
from relay.cli.init_verb import TEMPLATE
from relay.config.settings import keys
from relay.config.trust import CONFIG_NAME, is_trusted, read_config, user_config
from relay.core.errors import ConfigError, NotFound, RelayError
from relay.core.paths import Home
from tests.cli.verbs import Verb, printed_json, verbs_of
from tests.config.trusted import trusted


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verb:
    """Runs a verb in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return verbs_of(config_verbs)


def test_trust_shows_and_pins(relay: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    Path(CONFIG_NAME).write_text(TEMPLATE)
    capsys.readouterr()
    home, file = Home.from_env(), read_config(str(Path(CONFIG_NAME).absolute()))
    assert relay("trust", "--show") == 0
    shown = capsys.readouterr()
    assert file.sha256 in shown.out
    assert "hello" not in shown.out and "known when it has run" in shown.err
    assert not is_trusted(home, file.path, file.sha256)
    assert relay("trust", "--json") == 0
    record = printed_json(capsys)
    assert (record["path"], record["sha256"], record["trusted"]) == (file.path, file.sha256, True)
    assert (record["patterns"], record["hooks"]) == (["hello"], ["on_session_start"])
    assert is_trusted(home, file.path, file.sha256)
    assert relay("trust", "--revoke") == 0
    assert not is_trusted(home, file.path, file.sha256)
    with pytest.raises(NotFound):
        relay("trust", "--revoke")


def test_who_took_the_trust_back_is_shown(
    relay: Verb, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / CONFIG_NAME).write_text("patterns = {}\n")
    relay("trust", "--json")
    assert printed_json(capsys)["via"].endswith(f"(pid {os.getpid()})")
    relay("trust", "--revoke")
    capsys.readouterr()
    relay("trust", "--show")
    assert re.search(
        rf"^trusted +no, taken back, from .*\(pid {os.getpid()}\)$", capsys.readouterr().out, re.M
    )
    relay("trust")
    assert "taken back" not in capsys.readouterr().out


def test_the_first_trust_after_a_damage_says_what_became_of_the_rest(
    relay: Verb, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / CONFIG_NAME).write_text("patterns = {}\n")
    relay("trust")
    store = Path(Home.from_env().trust)
    store.write_text("")
    with pytest.raises(RelayError, match="is damaged"):
        relay("trust", "--revoke")
    capsys.readouterr()
    assert relay("trust") == 0
    assert f"it is kept as {store}.damaged, and a new one begins" in capsys.readouterr().err
    assert relay("trust") == 0
    assert "damaged" not in capsys.readouterr().err


def test_trust_shows_where_memories_go(
    relay: Verb, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / CONFIG_NAME
    file.write_text("memory = {'backend': 'qdrant', 'config': {'url': 'http://u:pw@far:6333'}}\n")
    assert relay("trust", "--show") == 0
    assert "qdrant" not in capsys.readouterr().out
    assert relay("trust") == 0
    shown = capsys.readouterr().out
    assert "memory        backend qdrant" in shown and "far:6333" in shown and "pw" not in shown
    assert relay("trust", "--show") == 0
    assert capsys.readouterr().out == shown
    file.write_text("config = {'task': 'x'}\n")
    assert relay("trust", "--json") == 0
    assert printed_json(capsys)["memory"] is None


MISTAKEN = """\
from relay import Relay
relay = Relay(idle_seconds=-1)
@relay.on("sesion_start")
def a(ctx): ...
@relay.pattern("Deploy")
def b(ctx): ...
config = {
  "pattens": {},
  "timeout": "x",
}
hooks = {
  "before_tol": print,
  "idle": {"handlr": print},
  "session_end": {"command": 3},
}
patterns = {"broadcast": print}
"""


def mistake(relay: Verb, *words: str) -> str:
    """The one mistake for which a verb refuses the file."""
    with pytest.raises(ConfigError, match="has a mistake, so it") as refused:
        relay(*words)
    [line] = cast(list[str], refused.value.details["mistakes"])
    return line


def test_trust_names_every_mistake_with_its_line_and_trusts_nothing(
    relay: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(CONFIG_NAME).absolute()
    path.write_text(MISTAKEN)
    with pytest.raises(ConfigError, match="9 mistakes, so it is not trusted") as caught:
        relay("trust")
    said = capsys.readouterr().err
    for line, word in (
        *((2, "idle_seconds"), (3, "sesion_start"), (5, "Deploy"), (8, "pattens"), (9, "timeout")),
        *((12, "before_tol"), (13, "handlr"), (14, "command"), (16, "broadcast")),
    ):
        assert re.search(rf"^{re.escape(str(path))}:{line}: .*{word}", said, re.M), (line, word)
    assert caught.value.details["mistakes"] == said.splitlines()
    home = Home.from_env()
    assert not is_trusted(home, str(path), read_config(str(path)).sha256)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import os\nos._exit(0)\n", "ended the process"),
        ("import relay\n@relay.pattern('x')\ndef x(): ...\n", "from relay import Relay"),
        ("x = 1\nimport there_is_none\n", ":2: it imports 'there_is_none'"),
        ("hooks = {'idle': {'command': ['x'], 'files': ['rules']}}\n", "cannot read"),
    ],
    ids=["ends its process", "import relay", "import", "missing file"],
)
def test_what_cannot_load_is_not_trusted(relay: Verb, text: str, why: str) -> None:
    path = Path(CONFIG_NAME).absolute()
    path.write_text(text)
    assert why in mistake(relay, "trust")
    assert not is_trusted(Home.from_env(), str(path), read_config(str(path)).sha256)


def test_a_file_that_is_gone_can_be_revoked(relay: Verb) -> None:
    Path(CONFIG_NAME).write_text(TEMPLATE)
    relay("trust", CONFIG_NAME)
    os.unlink(CONFIG_NAME)
    assert relay("trust", "--revoke", CONFIG_NAME) == 0


def test_names_in_an_unread_file_cannot_draw_on_the_terminal(
    relay: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(CONFIG_NAME).write_text("patterns = {'a\\x1b[2J': print, 'b\\x1b[2J': print}\n")
    with pytest.raises(ConfigError, match="2 mistakes"):
        relay("trust")
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err


def test_show_says_where_each_value_comes_from(
    relay: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    relay("config", "show", "--json")
    record = printed_json(capsys)
    assert (record["path"], record["trusted"]) == (None, "none")
    assert record["settings"]["timeout"] == {"value": 30.0, "from": "default"}
    path = Path(CONFIG_NAME).absolute()
    path.write_text("config = {'timeout': 5, 'hooks': {'idle': lambda ctx: None}}\n")
    relay("config", "show", "--json")
    record = printed_json(capsys)
    assert (record["trusted"], record["hooks"]) == ("no", [config_verbs.UNKNOWN])
    assert record["settings"]["timeout"] == {"value": 30.0, "from": "default"}
    relay("trust")
    capsys.readouterr()
    relay("config", "show", "--json")
    record = printed_json(capsys)
    assert record["trusted"] == "yes"
    assert record["settings"]["timeout"] == {"value": 5.0, "from": str(path)}
    assert record["settings"]["idle_seconds"]["from"] == "default"
    path.write_text("patterns = {}\n")
    assert record["settings"]["memory"]["value"]["secrets"] == "redact"
    relay("config", "show")
    captured = capsys.readouterr()
    assert "changed" in captured.out
    assert "relay trust" in captured.err


def test_show_lists_whatever_is_set(relay: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    own = Path(user_config())
    own.parent.mkdir(parents=True)
    own.write_text("config = {'notify': {'bell': False, 'quiet': '22:00-07:00'}}\n")
    Path(CONFIG_NAME).write_text("config = {'mcp': True, 'may': {'Bob': ['peek']}, 'timeout': 9}\n")
    relay("trust", str(own))
    assert "notify        desktop, quiet 22:00-07:00\n" in capsys.readouterr().out
    relay("trust")
    assert "settings      timeout 9, mcp True\n" in capsys.readouterr().out
    relay("config")
    shown = capsys.readouterr().out
    for line in (
        "mcp           True  (relay.config.py)",
        "may           Bob peek  (relay.config.py)",
    ):
        assert line in shown
    assert f"notify        desktop, quiet 22:00-07:00  ({output.short_path(str(own))})" in shown


def test_show_lists_what_else_applies_beside_a_file_that_cannot_be_used(
    relay: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    own = Path(user_config())
    own.parent.mkdir(parents=True)
    own.write_text("config = {'timeout': 9}\n")
    Path(CONFIG_NAME).write_text("import os\nconfig = {'task': os.environ['NOT_SET_HERE']}\n")
    for path in (str(own), CONFIG_NAME):
        trusted(Home.from_env(), path)
    with pytest.raises(ConfigError, match=":2: KeyError: 'NOT_SET_HERE'"):
        relay("config")
    assert "timeout       9  (" in capsys.readouterr().out


def test_all_keys_are_listed(relay: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    relay("config", "keys")
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()] == sorted(keys())


def test_check_runs_only_what_is_trusted(
    relay: Verb, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = tmp_path / "ran"
    path = Path(CONFIG_NAME)
    path.write_text(f"open({str(ran)!r}, 'w').close()\nhooks = {{'idle': lambda ctx: None}}\n")
    assert relay("config", "check", "--json") == 0
    record = printed_json(capsys)
    assert (record["ok"], record["executed"], ran.exists()) == (True, False, False)
    relay("trust")
    ran.unlink()
    capsys.readouterr()
    assert relay("config", "check") == 0
    assert ran.exists()
    assert "no mistake found (patterns: 0, hooks: 1)" in capsys.readouterr().out


def test_check_finds_mistakes_of_syntax_without_running(relay: Verb) -> None:
    Path(CONFIG_NAME).write_text("raise SystemExit\nhooks = {'on_idle': 1\n")
    with pytest.raises(ConfigError, match=":2: "):
        relay("config", "check")
    with pytest.raises(ConfigError, match="no configuration file missing"):
        relay("config", "check", "missing.py")


def test_check_finds_the_same_mistakes_without_running(
    relay: Verb, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = tmp_path / "ran"
    Path(CONFIG_NAME).write_text(f"{MISTAKEN}open({str(ran)!r}, 'w').close()\n")
    with pytest.raises(ConfigError, match="has 9 mistakes, so it cannot be used"):
        relay("config", "check")
    checked = capsys.readouterr().err
    assert not ran.exists()
    with pytest.raises(ConfigError, match="has 9 mistakes, so it is not trusted"):
        relay("trust")
    assert capsys.readouterr().err == checked


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("config = {'memory': {'backend': 'mem1'}}", "no backend 'mem1'"),
        ("config = {'idleSeconds': 1, 'idle_seconds': 2}", "are the same key"),
        ("def f(a, b): ...\nhooks = {'idle': f}", "requires 'b'"),
        ("hooks = {'idle': lambda a, b: 1}", "requires 'b'"),
        ("import there_is_none", "which is not installed"),
        ("config = ['timeout']", "config must be a dictionary, not list"),
        ("patterns = 5", "patterns must be a dictionary, not int"),
        ("config = {'hooks': ()}", "hooks must be a dictionary, not tuple"),
        ("from relay import Relay\nr = Relay()\n@r.route(kind=1)\ndef f(): ...", "'kinds'"),
        ("from relay import Relay\nr = Relay()\n@r.pattern(5)\ndef f(): ...", "namespace"),
    ],
)
def test_check_sees_what_stands_in_the_file(relay: Verb, text: str, why: str) -> None:
    Path(CONFIG_NAME).write_text(text)
    assert why in mistake(relay, "config", "check")


@pytest.mark.parametrize("words", [("config", "check"), ("trust",)], ids="-".join)
def test_a_folder_in_the_files_place_is_named(relay: Verb, words: tuple[str, ...]) -> None:
    Path(CONFIG_NAME).mkdir()
    with pytest.raises(ConfigError, match=f"{CONFIG_NAME} is a folder"):
        relay(*words)


def test_check_leaves_out_what_only_a_run_can_tell(relay: Verb) -> None:
    Path(CONFIG_NAME).write_text(
        """from relay import Relay
try:
    import there_is_none
except ImportError:
    pass
NAME, SECONDS = "idle", 5
r = Relay(timeout=SECONDS)
@r.on(NAME, priority=SECONDS)
def f(ctx): ...
@r.route
def g(event): ...
config = {"idle_seconds": SECONDS, "memory": {"searcher": f}, "hooks": {NAME: f}}
hooks = {"idle": {"command": ["run", NAME]}, "output": [f, {"handler": r.on, "timeout": SECONDS}]}
patterns = {"a": {**config}, "b": r.on, "c": {"handler": lambda *words, x=1: 1}}
"""
    )
    assert relay("config", "check") == 0


def test_check_knows_no_function_that_the_file_replaces_or_decorates(relay: Verb) -> None:
    Path(CONFIG_NAME).write_text(
        """import functools, os, sys
sys.path.insert(0, os.path.dirname(__file__))
import beside
from relay import Relay
r = Relay()
def fewer(function): return lambda message: function
def f(a, b, c, d, e): ...
f = functools.partial(f, 1, 2)
@fewer
def g(a, b, c, d, e): ...
@r.pattern("a")
@r.pattern("b")
@fewer
def h(a, b, c, d, e): ...
patterns = {"c": f, "d": g}
"""
    )
    Path("beside.py").write_text("")
    assert relay("config", "check") == 0
    assert relay("trust") == 0


def test_check_finds_unknown_keys_without_running(
    relay: Verb, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = tmp_path / "ran"
    Path(CONFIG_NAME).write_text(
        f"""open({str(ran)!r}, 'w').close()
NAME = "idle_seconds"
config = {{
    "idle_secnds": 3,
    NAME: 2, "idleSeconds": 1,
    "hooks": {{"before_tol": print}},
}}
hooks = {{"on_idle": {{"handler": print, "on_failur": "block"}}, **{{}}}}
routes = {{"mine": {{"kind": []}}}}
"""
    )
    with pytest.raises(ConfigError, match="has 4 mistakes, so it cannot be used") as refused:
        relay("config", "check")
    mistakes = cast(list[str], refused.value.details["mistakes"])
    lines = [line.partition(f"{CONFIG_NAME}:")[2] for line in mistakes]
    assert [line.partition(":")[0] for line in lines] == ["4", "6", "8", "9"]
    assert "did you mean 'idle_seconds'" in lines[0] and "'on_failure'" in lines[2]
    assert not ran.exists()


def test_show_masks_the_secrets_of_memory(relay: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    store = {"url": "http://me:hidden@q:6333", "apiKey": "hidden", "collection": "team"}
    memory = {"backend": "qdrant", "config": store}
    Path(CONFIG_NAME).write_text(f"config = {{'memory': {memory!r}}}\n")
    relay("trust")
    relay("config", "show")
    shown = capsys.readouterr()
    assert "hidden" not in shown.out + shown.err
    assert "backend qdrant" in shown.out and '"collection_name": "team"' in shown.out
    relay("config", "show", "--json")
    record = printed_json(capsys)["settings"]["memory"]["value"]
    assert record["config"]["vector_store"]["api_key"] == "…"


def test_check_finds_mistakes_in_memory(relay: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    Path(CONFIG_NAME).write_text("config = {'memory': {'backend': 'mem1'}}\n")
    assert "no backend 'mem1' (did you mean 'mem0'?)" in mistake(relay, "trust")
    trusted(Home.from_env(), CONFIG_NAME)  # by a relay that knew this backend
    assert "no backend 'mem1' (did you mean 'mem0'?)" in mistake(relay, "config", "check")
    memory = {"backend": "qdrant", "config": {"url": "http://q", "apiKeyEnv": "NOT_SET_HERE"}}
    Path(CONFIG_NAME).write_text(f"config = {{'memory': {memory!r}}}\n")
    relay("trust")
    capsys.readouterr()
    assert relay("config", "check") == 0
    assert "variable NOT_SET_HERE is not set here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("settings.json", '{"hooks": {\n', [":2: it is not JSON"]),
        (
            "settings.json",
            '{"hooks": {"Stop": [{"hooks": [{"type": "prompt"}]}], "Stopp": [{"hooks": []}]}}',
            [": hooks.Stop[0].hooks[0]: ", ": hooks.Stopp: "],
        ),
        (
            "relay.yaml",
            "agents:\n  Alice:\n    comand: x\n",
            [":3: there is no", ":3: command miss"],
        ),
    ],
    ids=["no JSON", "hooks", "team"],
)
@pytest.mark.parametrize("words", [("config", "check"), ("trust",)], ids="-".join)
def test_mistakes_in_other_files_are_told_a_line_each(
    relay: Verb,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    name: str,
    text: str,
    told: list[str],
) -> None:
    path = Path(name).absolute()
    path.write_text(text)
    with pytest.raises(ConfigError):
        relay(*words, name)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(told)
    for line, start in zip(lines, told, strict=True):
        assert line.startswith(f"{path}{start}")
