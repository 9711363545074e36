"""examples/relay-shout, a feature of a package that is installed, and one that is broken."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace

import pytest

from relay.broker.client import connect
from relay.core.agent_names import owner_name
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.hooks.registry import Registry
from relay.protocol.message_ops import SEND
from relay.ui import row_view
from tests.broker.support import register
from tests.support import unchecked

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "relay-shout"

THERE = "shout, of the package relay_shout"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example as ``pip install`` leaves it, for this process and those that it starts."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    shutil.copytree(EXAMPLE / "relay_shout", tmp_path / "relay_shout")
    info = tmp_path / f"relay_shout-{project['version']}.dist-info"
    info.mkdir()
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(head)
    lines = ["[relay.features]"]
    lines += [f"{k} = {v}" for k, v in project["entry-points"]["relay.features"].items()]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    row_view._views.cache_clear()
    yield tmp_path
    row_view._views.cache_clear()
    for name in [one for one in sys.modules if one.partition(".")[0] == "relay_shout"]:
        del sys.modules[name]


def relay(*words: str) -> str:
    command = [sys.executable, "-m", "relay", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.usefixtures("packages")
def test_it_shouts_counts_and_is_seen(home: Home) -> None:
    owner = owner_name()
    with register(home, "Bob") as bob:
        command = [sys.executable, "-m", "relay", "watch", "--text", "--kinds", "shout"]
        watch = subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True)
        assert watch.stdout is not None and watch.stderr is not None
        assert "watching" in watch.stderr.readline()
        for _ in range(2):
            id_ = relay("shout", "Bob", "wake", "up").strip()
            push = bob.next_push(20)
            assert push is not None and (push["id"], push["body"]) == (id_, "WAKE UP")
        assert watch.stdout.readline().endswith(f"{owner} shouts at Bob: WAKE UP\n")
        watch.terminate()
        watch.communicate(timeout=20)
        assert relay("shout") == f"{owner}  2\n"
        unchecked(bob).request("shout", to=owner, body="quiet")
        with pytest.raises(RelayError) as raised:
            unchecked(bob).request("shout_counts")
        assert raised.value.code == "forbidden"
        assert relay("shout") == f"Bob  1\n{owner}  2\n"
    assert "write to an agent in capitals" in relay("help")


@pytest.mark.usefixtures("packages")
def test_its_pattern_sends_in_capitals() -> None:
    session = importlib.import_module("relay_shout.session")
    registry, sent = Registry(), []
    session.register(registry, None)
    assert [one.target for one in registry.select("shout", "Bob")] == ["*"]
    session.shout("Bob", "hello", SimpleNamespace(send=lambda *one: sent.append(one)))
    assert sent == [("Bob", "HELLO")]


@pytest.mark.usefixtures("packages")
def test_it_keeps_to_the_doors() -> None:
    from relay.testing.feature_contract import check_feature

    check_feature("relay_shout", {"shout": {"who": "Al", "to": "Bob", "words": "HEY"}})


@pytest.mark.parametrize(
    ("file", "text", "why", "lists"),
    [
        (
            "broker.py",
            "raise OSError('no disk')\n",
            "could not be loaded: OSError: no disk",
            "OSError: no disk",
        ),
        ("tables.py", "MIGRATIONS = (('CREATE TABEL x (y)',),)\n", "its migration 1 fails", THERE),
        ("broker.py", "def feature(parts): return 1 / 0\n", "could not be opened: division", THERE),
        (
            "ops.py",
            (EXAMPLE / "relay_shout" / "ops.py").read_text().replace("body: str", "body: Words"),
            "name 'Words' is not defined",
            THERE,
        ),
    ],
    ids=["import", "tables", "open", "ops"],
)
def test_one_that_fails_is_left_out_and_named(
    home: Home, packages: Path, file: str, text: str, why: str, lists: str
) -> None:
    (packages / "relay_shout" / file).write_text(text)
    with register(home, "Bob") as bob, connect(home) as client:
        client.request(SEND, to="Bob", body="hello")
        push = bob.next_push(20)
        assert push is not None and push["body"] == "hello"
        with pytest.raises(RelayError, match="shout"):
            unchecked(client).request("shout", to="Bob", body="hello")
    assert why in Path(home.broker_log).read_text()
    assert lists in " ".join(relay("doctor").split())
