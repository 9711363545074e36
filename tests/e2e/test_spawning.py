"""Agents in a terminal that nobody sits at: started, looked at, typed into, ended."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relay.app import spawning
from relay.app.driven_program import DrivenProgram
from relay.config import names
from relay.config.spawned_agents import record_of, spawned
from relay.core.paths import Home
from relay.core.processes import MARKS
from tests.e2e.wrapped import (
    ECHO,
    RELAY,
    Wrapped,
    python,
    relay,
    relay_json,
    wait_registered,
    wrapped,
)
from tests.support import wait_until

#: A full-screen program: its size in red, and what was typed into it.
FULL = """
import os, signal, sys, tty
typed = b""
def draw(*_):
    size = "\\33[31msize %dx%d\\33[0m" % os.get_terminal_size()
    os.write(1, ("\\33[H\\33[2J%s typed <%s>" % (size, typed.decode())).encode())
tty.setraw(0)
os.write(1, b"\\33[?1049h\\33[?25l")
signal.signal(signal.SIGWINCH, draw)
draw()
while True:
    typed += os.read(0, 100)
    draw()
"""


@pytest.fixture(autouse=True)
def released(isolated_home: object) -> Iterator[None]:
    """End what a test that failed has left."""
    yield
    if names.holder(Home.from_env(), "Bob") is not None:
        relay("release", "Bob", "--now", "--yes", status=None)


@contextmanager
def viewer(cols: int, rows: int, *options: str) -> Iterator[DrivenProgram]:
    """Somebody who looks at Bob, from a real terminal."""
    argv = [*RELAY, "attach", "Bob", *options]
    with DrivenProgram(argv, dict(os.environ), cols, rows) as program:
        yield program


def sees(program: DrivenProgram, text: str) -> None:
    wait_until(lambda: program.shows(text), 20, text)


def test_an_agent_survives_the_terminal_it_was_spawned_from_and_is_released_in_order() -> None:
    spawn = shlex.join([*RELAY, "spawn", "Bob", "--", *python(ECHO)])
    with Wrapped.directly(["sh", "-c", f"{spawn}; echo; cat"]) as shell:
        shell.wait_for("Bob is idle")
    relay("send", "Bob", "are you there?", "--wait=20")
    with viewer(100, 20) as looking:
        sees(looking, "GOT")
        looking.type("typed by hand\r")
        sees(looking, "GOT typed by hand")
        looking.type("\x1cd")
        sees(looking, "Bob runs on")
    assert relay_json("release", "Bob", "--json") == {"name": "Bob", "how": "ended"}
    wait_until(lambda: not os.path.exists(Home.from_env().host_socket("Bob")))
    assert "no agent called Bob" in relay("attach", "Bob", status=2) + relay(
        "release", "Bob", status=3
    )


def test_viewers_of_any_size_see_the_same_and_who_only_reads_types_nothing() -> None:
    relay("spawn", "Bob", "--no-wait", "--", *python(FULL))
    with viewer(80, 24) as one:
        sees(one, "size 80x24 typed <>")
        assert one.picture(0).title == "Bob: Ctrl-\\ d leaves it"
        with viewer(60, 30, "--read-only") as other:
            for program in (one, other):
                sees(program, "size 60x24 typed <>")
            other.type("no")
            one.type("yes")
            for program in (one, other):
                sees(program, "typed <yes>")
            other.type("q")
            sees(other, "Bob runs on")
        sees(one, "size 80x24 typed <yes>")
        relay("release", "Bob", "--now")
        sees(one, "Bob has ended")


def test_who_does_not_end_when_it_is_told_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    ignored = "import signal\nfor n in (1, 15): signal.signal(n, signal.SIG_IGN)\n"
    relay("spawn", "Bob", "--", *python(ignored + ECHO))
    for name in ("_HANGUP", "_TERM", "_ENDING_MAX"):
        monkeypatch.setattr(spawning, name, 0.2)
    assert spawning.release(Home.from_env(), "Bob") == "killed"
    assert spawned(Home.from_env()) == []


def test_what_ends_at_once_is_said_with_what_it_showed() -> None:
    said = relay("spawn", "Bob", "--", "sh", "-c", "echo no key for the model; exit 3", status=1)
    assert "Bob has ended with status 3" in said
    assert "\n  no key for the model" in said
    assert "command not found" in relay("spawn", "Bob", "--", "no-such-program", status=127)


def test_who_has_lost_its_terminal_is_brought_back_and_who_was_released_is_not(
    tmp_path: Path,
) -> None:
    fails = tmp_path / "fails"
    program = f"import os\nif os.path.exists({str(fails)!r}): raise SystemExit(3)\n" + ECHO
    relay("spawn", "Bob", "--", *python(program))
    hosts = {row["name"]: row["host"] for row in spawned(Home.from_env())}
    assert list(hosts) == ["Bob"]
    os.kill(hosts["Bob"], signal.SIGKILL)  # as when the machine goes down
    wait_until(lambda: names.holder(Home.from_env(), "Bob") is None)
    fails.touch()  # what failed once can be tried again
    assert "Bob has ended with status 3" in relay("resume", status=1)
    fails.unlink()
    [back] = relay_json("resume", "--json")
    assert (back["name"], back["state"]) == ("Bob", "idle")
    assert "no agent is called Ada" in relay("resume", "Ada", status=3)
    relay("release", "Bob")
    assert relay_json("resume", "--json") == []
    [(one, is_known)] = spawning.resumable(Home.from_env(), ["Bob"])
    assert (one.name, is_known) == ("Bob", True)


def test_who_is_stopped_where_no_shell_is_goes_on_when_it_is_continued() -> None:
    relay("spawn", "Bob", "--", *python(ECHO))

    def state() -> str:
        [row] = relay_json("agents", "--live", "--json")
        return str(row["state"])

    [row] = relay_json("agents", "--live", "--json")
    os.kill(row["pid"], signal.SIGSTOP)
    wait_until(lambda: state() == "stopped")
    os.kill(row["pid"], signal.SIGCONT)
    wait_until(lambda: state() == "idle")
    relay("send", "Bob", "are you there?", "--wait=20")  # it has seen it


@pytest.mark.skipif(not MARKS, reason="the processes of a run are found by /proc")
def test_all_that_ran_is_brought_back_after_an_orderly_shutdown(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """As at a reboot: SIGTERM to everything, in the worst order and over seconds, then SIGKILL."""
    monkeypatch.setenv("OF_THIS_REBOOT", "1")
    home = Home.from_env()
    names_ = ["Dies", "Exits", "Leaves", "Stays"]
    request.addfinalizer(lambda: relay("release", *names_, "--now", "--yes", status=None))
    caught = "import os, signal\nsignal.signal(15, lambda *_: os._exit(%d))\n"
    ignored = "import signal\nsignal.signal(15, signal.SIG_IGN)\n"
    for name, source in zip(names_, ("", caught % 143, caught % 0, ignored), strict=True):
        relay("spawn", name, "--", *python(source + ECHO))
    with wrapped(python(ECHO), name="Wrapped"):
        wait_registered("Wrapped")
        hosts = {row["host"] for row in spawned(home)}
        running = _of_this_reboot()
        assert len(hosts) == len(names_) and hosts < running
        _signal(running - hosts, signal.SIGTERM)
        wait_until(lambda: names.holder(home, "Dies") is None)
        wait_until(lambda: names.holder(home, "Exits") is None)
        wait_until(lambda: (record_of(home, "Leaves") or {}).get("ended"))
        _signal(hosts, signal.SIGTERM)
        wait_until(lambda: not hosts & _of_this_reboot())
        _signal(_of_this_reboot(), signal.SIGKILL)
        wait_until(lambda: not _of_this_reboot())
    back = relay_json("resume", "--json")
    assert [(row["name"], row["state"]) for row in back] == [(name, "idle") for name in names_]


def _of_this_reboot() -> set[int]:
    """The processes of this test's agents, hosts, sessions and broker."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if b"OF_THIS_REBOOT=1" in environment and int(pid) != os.getpid():
                found.add(int(pid))
    return found


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.skipif(not MARKS, reason="runs are marked on Linux only")
def test_an_agent_has_helpers_hears_of_their_end_and_sits_at_no_terminal(
    isolated_home: Path,
) -> None:
    config = isolated_home.parent / ".config" / "relay" / "relay.config.py"
    config.parent.mkdir(parents=True)
    config.write_text('may = {"Lead": ["spawn"]}\n')
    relay("trust", str(config))
    path = Home.from_env().host_socket("Bob")
    plain = shlex.join(
        python(
            "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
            's.sendall(b\'{"cols": 80, "rows": 24}\\n\'); print(s.recv(999).decode())'
        )
    )
    with wrapped(["sh"], name="Lead") as lead:
        wait_registered("Lead")
        lead.type(shlex.join([*RELAY, "spawn", "Bob", "--", *python(ECHO)]) + "\n")
        lead.wait_for("Bob is idle")
        assert spawned(Home.from_env())[0]["parent"] == "Lead"
        lead.type(f"{shlex.join(RELAY)} attach Bob\n")
        lead.wait_for("only the person may attach to agents")
        lead.type(f"clear; env -u RELAY_RUN setsid {plain} {path}\n")
        lead.wait_for('"ok": ?false.*only the person may attach')
        with viewer(80, 20) as looking:  # the person may, though the host is below that agent
            looking.type("typed by the person\r")
            sees(looking, "GOT typed by the person")
            looking.type("\x1cd")
            sees(looking, "Bob runs on")
        lead.type(shlex.join([*RELAY, "release", "Bob"]) + "\n")
        lead.wait_for("Bob has ended")
        [told] = wait_until(
            lambda: [
                row
                for row in relay_json("history", "Lead", "--json")
                if "Your helper Bob has ended" in row["body"]
            ]
        )
        assert told["from"] == "relay"
