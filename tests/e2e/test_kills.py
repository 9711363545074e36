"""SIGKILL at any moment: the agent notices nothing, nothing is lost, nothing is doubled."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from relay.core.paths import Home
from tests.e2e.wrapped import (
    ECHO,
    RELAY,
    Wrapped,
    kill_broker,
    kill_session,
    process_below,
    python,
    relay,
    relay_json,
    session_pid,
    states,
    wait_registered,
    wrapped,
)
from tests.support import found, wait_until

#: Says a message on each line it reads, numbered: "go 5" says five.
BURST = (
    "import sys\n"
    "n = 0\n"
    "for line in sys.stdin:\n"
    "    if not line.startswith('go '): continue\n"
    "    for _ in range(int(line.split()[1])):\n"
    "        print(f'@relay:Bob number {n}.\\n', flush=True); n += 1\n"
)
#: Keeps what it gets in a file, one line for each message.
KEEP = (
    "import re, sys\n"
    "out = open(sys.argv[1], 'a', buffering=1)\n"
    "for line in sys.stdin:\n"
    "    m = re.search(r'number (\\d+)', line)\n"
    "    if m: out.write(m[1] + '\\n')\n"
)
#: Answers each line after a moment.
ANSWER = (
    "import sys, time\n"
    "for line in sys.stdin:\n"
    "    print('I work.', flush=True)\n"
    "    time.sleep(1)\n"
    "    print('I am done.', flush=True)\n"
)
NAMES = ("Early", "Working", "Done", "Left")


def numbers(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def all_there(path: Path, count: int) -> None:
    """All of them, once, in order."""
    wait_until(lambda: len(numbers(path)) >= count, 90, f"{count} messages")
    wait_until(lambda: set(states()) == {"seen"}, 60, "all receipts")
    assert numbers(path) == list(range(count))


@pytest.mark.smoke
@pytest.mark.parametrize("killed", ["sessions", "broker"])
def test_whoever_is_killed_while_messages_flow_each_comes_once(killed: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with (
        wrapped([*python(KEEP), str(kept)], name="Bob") as bob,
        wrapped(python(BURST), name="Alice") as alice,
    ):
        wait_registered("Alice", "Bob")
        for program in (alice, bob, alice):
            alice.type("go 10\n")
            if killed == "broker":
                kill_broker()
            else:
                kill_session(program)
        all_there(kept, 30)
        alice.type("go 1\n")
        all_there(kept, 31)


def test_a_session_that_is_killed_again_and_again_comes_back_and_status_says_so_meanwhile() -> None:
    with wrapped(python(ECHO), name="Bob") as bob:
        wait_registered("Bob")
        for _ in range(6):
            kill_session(bob)
        os.kill(found(lambda: session_pid(bob)), signal.SIGKILL)
        deaf = "Bob: starting (deaf: its session has ended, and starts again within a minute)"
        wait_until(lambda: deaf in relay("status"), 20, "status says so")
        relay("send", "Bob", "still here", "--wait=30")
        bob.wait_for("GOT Relay message .*still here")
        assert "deaf" not in relay("status")


def test_a_broker_that_is_stopped_is_called_that_and_can_go_on_or_end() -> None:
    relay("send", "Bob", "first", "--offline")
    pid = relay_json("broker", "status")["pid"]
    os.kill(pid, signal.SIGSTOP)
    told = f"broker: the broker (pid {pid}) is stopped (kill -CONT {pid} resumes it"
    assert told in relay("broker", "status")
    os.kill(pid, signal.SIGCONT)
    assert relay_json("broker", "status")["pid"] == pid
    os.kill(pid, signal.SIGSTOP)
    os.unlink(Home.from_env().broker_socket)
    assert relay_json("broker", "stop") == {"stopped": True, "pid": pid}
    assert "first" in relay("history")  # of the next one


#: Answers each line once the file is there that it is told.
ANSWER_LATER = (
    "import os, sys, time\n"
    "for line in sys.stdin:\n"
    "    while not os.path.exists(sys.argv[1]): time.sleep(0.05)\n"
    "    print('Blue.', flush=True)\n"
)


def kill_brokers(count: int, waiting: subprocess.Popen[str]) -> None:
    """Kill one broker after the other, each once it serves, for as long as ``waiting`` runs."""
    killed: set[int] = set()
    while len(killed) < count and waiting.poll() is None:
        pid = relay_json("broker", "status")["pid"]
        if pid is not None and pid not in killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)


def test_a_verb_that_waits_goes_on_whatever_is_killed_and_stores_one_message(
    tmp_path: Path,
) -> None:
    go = tmp_path / "go"
    with wrapped([*python(ANSWER_LATER), str(go)], name="Bob"):
        wait_registered("Bob")
        with ExitStack() as stack:
            waiting = [
                subprocess.Popen([*RELAY, *words], stdout=subprocess.PIPE, text=True)
                for words in (
                    ("ask", "Bob", "which colour?", "--timeout=300"),
                    ("send", "Later", "wait for me", "--offline", "--wait=300"),
                )
            ]
            for process in waiting:
                stack.callback(process.kill)
            wait_until(lambda: len(states()) == 2, what="both to be stored")
            kill_brokers(3, waiting[0])
            go.touch()
            with wrapped(python(ECHO), name="Later"):
                assert waiting[0].communicate(timeout=300)[0] == "Blue.\n"
                waiting[1].communicate(timeout=300)
            assert [process.returncode for process in waiting] == [0, 0]
    assert len(states(body="which colour?")) == len(states(body="wait for me")) == 1


def test_a_memory_is_saved_once_whatever_is_killed_before_it_is_answered() -> None:
    save = [*RELAY, "memory", "save", "the build takes ten minutes", "--scope", "user"]
    relay("agents")
    broker = relay_json("broker", "status")["pid"]
    os.kill(broker, signal.SIGSTOP)  # it answers nothing
    with subprocess.Popen(save, stdout=subprocess.PIPE, text=True) as saving:
        os.kill(broker, signal.SIGKILL)
        kill_brokers(1, saving)
        told, _ = saving.communicate(timeout=90)
    [memory] = relay_json("memory", "list", "--scope", "user")
    assert saving.returncode == 0 and told == f"{memory['id']}\n"


def test_an_answer_is_told_once_whatever_is_killed_before_it() -> None:
    with ExitStack() as stack:
        agents = {n: stack.enter_context(wrapped(python(ANSWER), name=n)) for n in NAMES}
        wait_registered(*NAMES)
        ask = [*RELAY, "send", "--answer=60"]
        asked = {
            name: subprocess.Popen([*ask, name, "what?"], stdout=subprocess.PIPE, text=True)
            for name in NAMES
        }
        for process in asked.values():
            stack.callback(process.kill)
        kill_session(agents["Early"])
        agents["Working"].wait_for("I work")
        kill_session(agents["Working"])
        agents["Done"].wait_for("I am done")
        kill_session(agents["Done"])
        kill_broker()
        found = {name: process.communicate(timeout=60)[0] for name, process in asked.items()}
        assert found == dict.fromkeys(NAMES, "I work.\nI am done.\n")
        with closing(sqlite3.connect(Home.from_env().ledger)) as ledger:
            answered = ledger.execute(
                "SELECT persona FROM agent_turns t JOIN agent_sessions s ON s.id = t.session"
            ).fetchall()
        assert sorted(row[0] for row in answered) == sorted(NAMES)


def test_what_was_half_said_when_the_session_died_is_sent_once(tmp_path: Path) -> None:
    slow = "import sys\nfor line in sys.stdin:\n    print(eval(line), end='', flush=True)\n"
    with wrapped(python(ECHO), name="Bob") as bob, wrapped(python(slow), name="Alice") as alice:
        wait_registered("Alice", "Bob")
        alice.type(repr("@relay:Bob first half") + "\n")
        alice.wait_for("\n@relay:Bob first half")
        kill_session(alice)
        alice.type(repr(" and second\n\n") + "\n")
        bob.wait_for("GOT Relay message")
        wait_until(lambda: states() and set(states()) == {"seen"}, 30)
        bodies = [row["body"] for row in relay_json("history")]
        # What comes after a pause is no part of the message; the typed echo splits the line here.
        assert len(bodies) == 1 and bodies[0].startswith("first half")


def test_fifteen_hundred_messages_at_once_arrive_once_and_in_order(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with (
        wrapped([*python(KEEP), str(kept)], name="Bob"),
        wrapped(python(BURST), name="Alice") as alice,
    ):
        wait_registered("Alice", "Bob")
        alice.type("go 1500\n")
        wait_until(lambda: len(numbers(kept)) >= 1500, 120, "1500 messages")
        assert numbers(kept) == list(range(1500))
        assert relay_json("status")["counts"]["waiting"] == 0
        stored = "SELECT count(*) AS n FROM events WHERE kind = 'message'"
        assert relay_json("ledger", "query", stored) == [{"n": 1500}]


def test_what_is_heard_late_is_heard_as_it_was_said() -> None:
    """A session that starts again gets everything at once: what rested in between stays apart."""
    slow = (
        "import sys, time\n"
        "for line in sys.stdin:\n"
        "    if not line.startswith('say '): continue\n"
        "    for word in line.split()[1:]:\n"
        "        print(f'@relay:Bob {word}', flush=True); time.sleep(0.5)\n"
        "        print('something else', flush=True); time.sleep(0.5)\n"
        "    print('end', flush=True)\n"
    )
    with wrapped(python(slow), name="Slow") as program:
        wait_registered("Slow")
        before = found(lambda: session_pid(program))
        os.kill(before, signal.SIGSTOP)  # it hears nothing of what follows …
        try:
            program.type("say first second\n")
            program.wait_for("something else.*something else.*end")
        finally:
            os.kill(before, signal.SIGKILL)  # … and never will
        wait_until(lambda: len([row for row in relay_json("history") if row["to"] == "Bob"]), 30)
        program.type("say third\n")
        program.wait_for("third.*end")
        wait_until(lambda: "third" in str(relay_json("history")), 30)
        bodies = [row["body"] for row in relay_json("history") if row["to"] == "Bob"]
        assert bodies == ["first", "second", "third"]


#: Turns on what full-screen programs turn on, and waits.
FULL_SCREEN = (
    "import sys\n"
    "print('\\x1b[?1049h\\x1b[?2004h\\x1b[?1000h\\x1b[?1006h\\x1b[?25lready', flush=True)\n"
    "for line in sys.stdin: pass\n"
)
CONFIG = """
import os
import time

def on_session_end(ctx):
    open("begun", "w").close()
    while not os.path.exists("go on"):
        time.sleep(0.01)

hooks = {"on_session_end": on_session_end}
"""


def test_a_killed_pump_has_the_terminal_restored_before_the_last_handlers(tmp_path: Path) -> None:
    (tmp_path / "relay.config.py").write_text(CONFIG)
    relay("trust", str(tmp_path / "relay.config.py"))
    # A shell leads the outer terminal, as in real life: it outlives the pump.
    script = f'cd "{tmp_path}"; {" ".join(RELAY)} wrap --name Full -- "$@"; echo back; cat'
    with Wrapped.directly(["sh", "-c", script, "sh", *python(FULL_SCREEN)]) as shell:
        shell.wait_for("ready")
        wait_registered("Full")
        pump = found(lambda: process_below(shell.pid, "wrap --name Full"))
        try:
            os.kill(pump, signal.SIGKILL)
            shell.wait_for("back")
            for off in ("1049l", "2004l", "1000l", "25h"):
                shell.wait_for(rf"\x1b\[\?[0-9;]*{off[:-1]}[0-9;]*{off[-1]}", 10)
            wait_until((tmp_path / "begun").exists)
        finally:
            (tmp_path / "go on").touch()


LAST_HOOKS = """
def on_session_end(ctx, reason):
    ctx.inject(f"save what you have learned ({reason})")

async def later(ctx):
    ctx.inject("and tell Bob")

hooks = {"on_session_end": [on_session_end, later]}
config = {"end_seconds": 8}
"""


def test_what_the_last_hooks_inject_reaches_the_agent_before_its_terminal_goes(
    tmp_path: Path,
) -> None:
    (tmp_path / "relay.config.py").write_text(LAST_HOOKS)
    relay("trust", str(tmp_path / "relay.config.py"))
    heard = tmp_path / "heard"
    source = f"import sys\nfor line in sys.stdin: open({str(heard)!r}, 'a').write(line)\n"
    with wrapped(python(source), name="Ann", cwd=tmp_path):
        wait_registered("Ann")
    assert "save what you have learned (hangup)" in heard.read_text()
    assert "and tell Bob" in heard.read_text()
