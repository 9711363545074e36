"""Who a process belongs to, by its ancestors; and who may register a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import cast

import pytest

from relay.broker.client import connect
from relay.broker.identity import Membership, Standing, WrappedRuns
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.core.processes import MARK, MARKS, Process, ancestry
from relay.core.processes import SESSION as SESSION_NAME
from relay.protocol.agent_ops import AGENTS
from relay.protocol.broker import message_from
from relay.protocol.broker_ops import STATUS
from relay.protocol.message_ops import HISTORY, SEND, DeliverPush
from tests.broker.support import (
    broker_process,
    broker_thread,
    register,
    stop_broker,
    wait_for_broker,
)
from tests.support import wait_until

marked = pytest.mark.skipif(not MARKS, reason="runs are marked on Linux only")


def line(*processes: int, session: int = 0, start: str = "1") -> tuple[Process, ...]:
    """A process with its ancestors, the nearest first; monitors have round numbers."""
    parents = [*processes[1:], 0]
    return tuple(
        Process(pid, parent, session, start, MARK if pid % 10 == 0 else "sh", "")
        for pid, parent in zip(processes, parents, strict=True)
    )


#: The person's shell 2 runs the pump 3, which has the session 4 and the monitor 10 of the agent 11.
SESSION, AGENT = line(4, 3, 2, 1), line(11, 10, 3, 2, 1)


@pytest.fixture
def runs() -> WrappedRuns:
    runs = WrappedRuns()
    runs.register("outer", SESSION, AGENT, known=False)
    return runs


def test_what_is_below_a_monitor_is_that_agent_and_nothing_else_is(runs: WrappedRuns) -> None:
    outer = Standing(Membership.RUN, "outer")
    assert runs.standing(line(15, 12, 11, 10, 3, 2, 1)) == outer
    assert runs.standing(line(16, 10, 3, 2, 1)) == outer  # an orphan that the monitor took over
    for outside in (SESSION, line(3, 2, 1), line(5, 2, 1), line(17, 4, 3, 2, 1)):
        assert runs.standing(outside).place is Membership.OUTSIDE
    assert runs.standing(()).place is Membership.UNKNOWN


def test_what_relay_calls_is_the_persons_program_and_not_the_persons_word() -> None:
    broker = line(7, 1)[0]
    runs = WrappedRuns(broker=broker)
    handler, worker = line(17, 4, 3, 2, 1), line(18, 7, 1)
    assert not runs.is_called(handler)
    runs.register("outer", SESSION, AGENT, known=False)
    for called in (handler, worker, line(19, 18, 7, 1)):
        assert runs.standing(called).place is Membership.OUTSIDE and runs.is_called(called)
    # A broker that has just come back knows no session; the kernel knows its name.
    named = Process(4, 3, 0, "1", SESSION_NAME, "")
    assert WrappedRuns(broker=broker).is_called((handler[0], named, *handler[2:]))
    for own in (line(5, 2, 1), line(2, 1), (broker,)):
        assert not runs.is_called(own)


def test_the_nearest_run_wins(runs: WrappedRuns) -> None:
    inner = line(21, 20, 13, 11, 10, 3, 2, 1)
    if MARKS:  # by its mark, before it registers: neither the outer agent nor the person
        assert runs.standing(inner).place is Membership.UNREGISTERED
    runs.register("inner", line(14, 13, 11, 10, 3, 2, 1), inner, known=False)
    assert runs.standing(inner) == Standing(Membership.RUN, "inner")
    assert runs.standing(line(13, 11, 10, 3, 2, 1)) == Standing(Membership.RUN, "outer")


@marked
def test_all_runs_above_are_known_whether_or_not_their_sessions_are(runs: WrappedRuns) -> None:
    inner = line(21, 20, 13, 11, 10, 3, 2, 1)
    assert runs.above(inner) == ["outer"]
    runs.register("inner", line(14, 13, 11, 10, 3, 2, 1), inner, known=False)
    assert runs.above(line(22, 21, 20, 13, 11, 10, 3, 2, 1)) == ["inner", "outer"]
    assert runs.above(line(5, 2, 1)) == []
    assert runs.served_by(line(17, 4, 3, 2, 1)) == "outer" and runs.served_by(SESSION) == ""


def test_another_process_of_the_monitors_number_is_not_the_monitor(runs: WrappedRuns) -> None:
    assert runs.standing(line(11, 10, 3, 1, start="2")).place is Membership.UNREGISTERED


def test_an_orphan_is_known_by_the_session_of_its_terminal(runs: WrappedRuns) -> None:
    assert runs.standing(line(16, 1, session=10)) == Standing(Membership.RUN, "outer")
    assert runs.standing(line(16, 1, session=16)).place is Membership.OUTSIDE


@marked
def test_what_a_broker_itself_stands_below_says_nothing_of_its_clients() -> None:
    runs = WrappedRuns(around=line(10, 3, 2, 1))
    assert runs.standing(line(15, 11, 10, 3, 2, 1)).place is Membership.OUTSIDE
    assert runs.standing(line(21, 20, 11, 10, 3, 2, 1)).place is Membership.UNREGISTERED


@pytest.mark.parametrize(
    ("run", "session", "agent", "known"),
    [
        pytest.param("outer", line(12, 11, 10, 3, 2, 1), (), True, id="itself"),
        pytest.param("outer", line(16, 10, 3, 2, 1), AGENT, True, id="an-orphan"),
        pytest.param("outer", (), AGENT, True, id="one-that-has-gone"),
        pytest.param("other", line(12, 11, 10, 3, 2, 1), (), True, id="a-run-of-before"),
        pytest.param("other", SESSION, AGENT, False, id="a-monitor-that-is-taken"),
    ],
)
def test_an_agent_cannot_register_a_run(
    runs: WrappedRuns,
    run: str,
    session: tuple[Process, ...],
    agent: tuple[Process, ...],
    known: bool,
) -> None:
    with pytest.raises(RelayError, match="only the session that relay started"):
        runs.register(run, session, agent, known=known)


@pytest.mark.parametrize(
    ("session", "agent"),
    [
        pytest.param(line(6, 5, 2, 1), line(11, 10, 3, 2, 1), id="another-pumps-monitor"),
        pytest.param(line(6, 1), line(11, 10, 1), id="orphans-of-one-init"),
        pytest.param(line(6, 5, 2, 1), line(9, 5, 2, 1), id="no-monitor"),
    ],
)
def test_nobody_lends_himself_a_monitor(
    session: tuple[Process, ...], agent: tuple[Process, ...]
) -> None:
    runs = WrappedRuns()
    runs.register("mine", session, agent, known=False)
    assert not runs.is_proven("mine")


def test_a_session_comes_back_also_when_its_pump_has_gone(runs: WrappedRuns) -> None:
    runs.register("outer", line(4, 1), (), known=True)
    runs.register("outer", line(8, 3, 2, 1), (), known=True)  # the next one, of the same pump


def test_a_process_has_its_ancestors_and_they_end(tmp_path: object) -> None:
    own = ancestry(os.getpid())
    assert [own[0].pid, own[1].pid] == [os.getpid(), os.getppid()]
    assert not own[-1].parent or not own[-1].is_marked
    assert ancestry(2**22 + 1) == ()


#: Connects, asks, and is gone before the broker (which is stopped meanwhile) has accepted it.
GONE = (
    "import os, socket, sys\n"
    "if os.fork() == 0:\n"
    "    s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.send(sys.argv[2].encode())\n"
    "    os.set_inheritable(s.fileno(), True)\n"
    "    if os.fork() == 0: os.execvp('sleep', ['sleep', '5'])\n"
    "    os._exit(0)\n"
    "os.wait()\n"
)


@marked
def test_who_has_gone_before_it_was_looked_at_is_nobody(isolated_home: object) -> None:
    home = Home(str(isolated_home))
    home.create()
    with broker_process(home) as process:
        wait_for_broker(home)
        ask = json.dumps({"n": 1, "op": "send", "to": "Al", "body": "x", "offline": True}) + "\n"
        os.kill(process.pid, signal.SIGSTOP)
        # The connection is held open by another process, so that an answer could come.
        command = [sys.executable, "-c", GONE, home.broker_socket, ask]
        subprocess.run(command, check=True, timeout=30)
        os.kill(process.pid, signal.SIGCONT)
        with connect(home) as client:
            wait_until(lambda: client.request(STATUS)["connections"] >= 1)
            assert client.request(HISTORY)["rows"] == []
        stop_broker(home)


#: Registers as Bob from below a monitor, and prints what the broker says.
HEIR = """
import os, sys
from relay.broker.client import connect
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.core.processes import MARK, name_process
name_process(MARK)
if os.fork() == 0:
    with connect(Home(sys.argv[1]), start=False) as client:
        try:
            client.request("register", name="Bob", run="run-2", token="other", kind="screen",
                           cwd="/", command="true")
        except RelayError as error:
            print(error.message, flush=True)
        print(client.request("history")["rows"], flush=True)
    os._exit(0)
os.wait()
"""


@marked
def test_no_process_of_an_agent_takes_the_name_of_another_one(isolated_home: object) -> None:
    home = Home(str(isolated_home))
    with broker_thread(home):
        register(home, "Bob").close()
        with connect(home) as client:
            client.request(SEND, to="Bob", body="the secret plan", offline=True)
            wait_until(lambda: client.request(AGENTS)["agents"][0]["state"] == "gone")
        command = [sys.executable, "-c", HEIR, home.root]
        told = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert "was not started in here" in told.stdout and "secret" not in told.stdout, told.stderr


def test_what_relay_calls_never_has_the_persons_voice(
    isolated_home: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that outlives its caller is nobody's child any more."""
    home = Home(str(isolated_home))
    with broker_thread(home), connect(home) as client, register(home, "Bob") as bob:
        client.request(SEND, to="Bob", body="mine")
        monkeypatch.setenv("RELAY_CALLED", "1")
        client.request(SEND, to="Bob", body="passed on")
        pushes = [bob.next_push(10), bob.next_push(10)]
    assert [message_from(cast(DeliverPush, push)).proven for push in pushes if push] == [
        True,
        False,
    ]
