from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from relay.config import trust as module
from relay.config.load import load_for_session
from relay.config.manifest import known, notices
from relay.config.trust import (
    CONFIG_MAX,
    CONFIG_NAME,
    find_config,
    is_trusted,
    read_config,
    trust,
    trusted_before,
    untrust,
)
from relay.core.errors import ConfigError, RelayError
from relay.core.paths import Home
from tests.config.trusted import trusted


@pytest.fixture
def home(isolated_home: Path) -> Home:
    return Home(str(isolated_home))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / CONFIG_NAME
    path.write_text("patterns = {}\n")
    return path


def test_the_working_directory_and_its_parents_up_to_the_root_are_searched(tmp_path: Path) -> None:
    project, outside = tmp_path / "project", tmp_path / CONFIG_NAME
    deep = project / "a" / "b"
    deep.mkdir(parents=True)
    outside.write_text("")
    assert find_config(str(deep)) is None  # no project: only the folder itself
    (project / ".git").mkdir()
    assert find_config(str(deep)) is None  # never beyond the project's root
    (project / CONFIG_NAME).write_text("")
    assert find_config(str(deep)) == str(project / CONFIG_NAME)
    (deep / CONFIG_NAME).write_text("")
    assert find_config(str(deep)) == str(deep / CONFIG_NAME)


def test_the_users_own_configuration_comes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "xdg" / "relay" / CONFIG_NAME
    own.parent.mkdir(parents=True)
    own.write_text("")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert find_config(str(work)) == str(own)
    standard = tmp_path / ".config" / "relay" / CONFIG_NAME
    standard.parent.mkdir(parents=True)
    standard.write_text("")
    monkeypatch.setenv("HOME", str(tmp_path))
    for base in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", base)
        assert find_config(str(work)) == str(standard)


def test_a_named_file_wins_and_must_be_there(config: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("")
    assert find_config(str(tmp_path), "other.py") == str(other)
    with pytest.raises(ConfigError, match=r"no configuration file missing\.py"):
        find_config(str(tmp_path), "missing.py")


def test_what_is_no_readable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        read_config(str(tmp_path))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(ConfigError, match="is not a file"):
        read_config(str(fifo))
    with pytest.raises(ConfigError, match="cannot read"):
        read_config(str(tmp_path / "missing"))
    large = tmp_path / "large"
    large.write_bytes(b"#" * (CONFIG_MAX + 1))
    with pytest.raises(ConfigError, match="larger"):
        read_config(str(large))


def test_trust_is_for_exactly_this_content(home: Home, config: Path) -> None:
    first = read_config(str(config))
    assert not is_trusted(home, str(config), first.sha256)
    assert trust(home, str(config)) == first.sha256
    assert is_trusted(home, str(config), first.sha256)
    config.write_text("patterns = {}  # changed\n")
    changed = read_config(str(config))
    assert not is_trusted(home, str(config), changed.sha256)
    assert trusted_before(home, str(config))
    assert untrust(home, str(config))
    assert not untrust(home, str(config))
    assert not is_trusted(home, str(config), first.sha256)


def test_trust_is_for_a_place_and_a_link_is_another_one(
    home: Home, config: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = elsewhere / CONFIG_NAME
    link.symlink_to(config)
    sha256 = trust(home, str(config))
    assert not is_trusted(home, str(link), sha256)
    folder = tmp_path / "folder"
    folder.symlink_to(config.parent)  # the same place by another way
    assert is_trusted(home, str(folder / CONFIG_NAME), sha256)
    trust(home, str(link))
    assert is_trusted(home, str(link), sha256)


def test_the_store_is_private(home: Home, config: Path) -> None:
    trust(home, str(config))
    assert stat.S_IMODE(os.stat(home.trust).st_mode) == 0o600


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"trusted": 3}', b"\xff", b"[" * 100_000],
    ids=["empty", "cut off", "list", "no table", "no UTF-8", "too deep"],
)
def test_a_damaged_store_trusts_nothing_and_keeps_every_gate_shut(
    home: Home, config: Path, content: bytes
) -> None:
    sha256 = trust(home, str(config))
    Path(home.trust).write_bytes(content)
    assert not is_trusted(home, str(config), sha256)
    for folder in (config.parent, config.parent.parent):  # a guard that was there may be gone
        loaded = load_for_session(home, str(folder))
        assert "is damaged" in loaded.unguarded and not loaded.files
        assert known(home, str(folder)).hooks == ("BeforeTool",)
    assert "is damaged" in notices(home, str(config.parent))[0]
    with pytest.raises(RelayError, match="is damaged"):
        untrust(home, str(config))
    assert Path(home.trust).read_bytes() == content
    trust(home, str(config))
    assert is_trusted(home, str(config), sha256)
    assert Path(home.trust + ".damaged").read_bytes() == content
    assert not load_for_session(home, str(config.parent)).unguarded


def test_a_damaged_entry_keeps_the_gate_of_its_file_shut(home: Home, config: Path) -> None:
    trust(home, str(config))
    store = json.loads(Path(home.trust).read_text())
    store["trusted"][str(config)] = 3
    Path(home.trust).write_text(json.dumps(store))
    assert "has changed" in load_for_session(home, str(config.parent)).unguarded


def test_a_store_that_others_can_write_trusts_nothing(home: Home, config: Path) -> None:
    sha256 = trust(home, str(config))
    os.chmod(home.trust, 0o666)
    assert not is_trusted(home, str(config), sha256)
    assert "written by others" in load_for_session(home, str(config.parent)).unguarded


def test_a_fifo_in_the_stores_place_stops_nobody(home: Home, config: Path) -> None:
    home.create()
    os.mkfifo(home.trust)
    assert "is not a file" in load_for_session(home, str(config.parent)).unguarded


def test_a_store_that_cannot_be_written_is_an_error_that_says_so(
    home: Home, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    home.create()
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RelayError, match="No space left"):
        trust(home, str(config))
    assert not list(Path(home.root).glob("trust.*json"))


def test_a_lock_that_is_held_too_long_is_an_error(
    home: Home, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    home.create()
    monkeypatch.setattr(module, "LOCK_TIMEOUT", 0.0)
    with open(home.trust + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RelayError, match="another process"):
            trust(home, str(config))
    trust(home, str(config))


def test_what_is_not_applied_is_said_at_each_start(home: Home, config: Path) -> None:
    cwd = str(config.parent)
    for _ in range(2):
        [line] = notices(home, cwd)
        assert "is not trusted" in line and f"relay trust {config}" in line
    trust(home, str(config))
    assert notices(home, cwd) == []
    config.write_text("# changed\n")
    for _ in range(2):
        [line] = notices(home, cwd)
        assert "has changed since you trusted it" in line
    config.unlink()
    for _ in range(2):
        [line] = notices(home, cwd)
        assert "is gone" in line and f"relay trust --revoke {config}" in line
    untrust(home, str(config))
    assert notices(home, cwd) == []


def test_a_trusted_file_that_does_not_load_is_said_at_each_start(home: Home, config: Path) -> None:
    config.write_text("import there_is_no_such_module\n")
    trusted(home, config)
    for _ in range(2):
        [line] = notices(home, str(config.parent))
        assert f"{config}:1: it imports 'there_is_no_such_module'" in line


def test_a_hook_file_that_is_not_applied_is_said_at_each_start(home: Home, config: Path) -> None:
    config.write_text("config = {'hook_files': ['hooks.json']}\n")
    trusted(home, config)
    hooks = config.with_name("hooks.json")
    hooks.write_text("{}")
    said = [notices(home, str(config.parent))]
    trust(home, str(hooks))
    assert notices(home, str(config.parent)) == []
    hooks.write_text("{ }")
    said.append(notices(home, str(config.parent)))
    hooks.unlink()
    said.append(notices(home, str(config.parent)))
    for [line], why in zip(said, ("is not trusted", "has changed", "is gone"), strict=True):
        assert line.startswith(str(hooks)) and why in line


def test_another_worktree_says_that_the_trusted_file_is_not_its_own(
    home: Home, tmp_path: Path
) -> None:
    main, other = tmp_path / "main", tmp_path / "other"
    inner = main / ".git" / "worktrees" / "other"
    inner.mkdir(parents=True)
    other.mkdir()
    (inner / "commondir").write_text("../..\n")
    (inner / "gitdir").write_text(f"{other / '.git'}\n")
    (other / ".git").write_text(f"gitdir: {inner}\n")
    (main / CONFIG_NAME).write_text("")
    assert notices(home, str(other)) == []
    trust(home, str(main / CONFIG_NAME))
    [line] = notices(home, str(other))
    assert f"another worktree of {main}" in line


def test_the_question_costs_no_imports_when_there_is_no_file(tmp_path: Path) -> None:
    # A short home of its own: one whose path is too long for a socket is named with hashlib.
    code = (
        "import sys; from relay.core.paths import Home; from relay.config import manifest\n"
        f"assert manifest.notices(Home('/tmp/no-relay-here'), {str(tmp_path)!r}) == []\n"
        "print([m for m in ('hashlib', 'json', 'fcntl', 'typing', 'shlex') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
