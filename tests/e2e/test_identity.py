"""What an agent cannot get by any means of its own: to be the person, or another agent."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from relay.broker.client import connect
from relay.core.agent_names import owner_name
from relay.core.errors import NameTaken
from relay.core.paths import Home
from relay.core.processes import MARKS, mark, read_process
from relay.protocol.agent_ops import REGISTER
from relay.protocol.broker import message_from
from relay.protocol.message_ops import HISTORY, DeliverPush
from tests.e2e.wrapped import (
    ECHO,
    RELAY,
    SAY,
    Wrapped,
    kill_broker,
    kill_session,
    python,
    relay,
    relay_json,
    say,
    session_pid,
    states,
    wait_registered,
    wrapped,
)
from tests.support import wait_until

pytestmark = pytest.mark.skipif(not MARKS, reason="runs are marked on Linux only")

COMMAND = shlex.join(RELAY)
#: The same for an agent that has not the patience to wait until the broker knows its run.
_HASTY = """import sys
from relay.__main__ import main
from relay.broker import client
client.KNOWN, client.connect.__defaults__ = 1.0, (True, 1.0)
sys.exit(main())
"""
HASTY = shlex.join([sys.executable, "-c", _HASTY])
STRIPPED = "env -u RELAY_RUN -u RELAY_TOKEN"
#: Leaves its parents, its session and its environment behind, then executes its arguments.
DAEMON = (
    "import os, sys\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "if os.fork(): os._exit(0)\n"
    "for name in ('RELAY_RUN', 'RELAY_TOKEN'): os.environ.pop(name, None)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])\n"
)
_PYTHON = shlex.quote(sys.executable)
_DAEMON = f"{_PYTHON} -c {shlex.quote(DAEMON)}"
#: How an agent may call relay so that nothing of its environment says whose it is.
WAYS = {
    "as it is": "{}",
    "stripped": STRIPPED + " {}",
    "token stripped": "env -u RELAY_TOKEN {}",
    "empty environment": 'env -i PATH="$PATH" HOME="$HOME" RELAY_HOME="$RELAY_HOME"'
    ' PYTHONPATH="$PYTHONPATH" {}',
    "double fork": f"({STRIPPED} setsid {{}} &)",
    "nohup": f"{STRIPPED} nohup {{}} >/dev/null 2>&1 &",
    "daemon": f"{_DAEMON} {{}}",
    "script": f"script -qc {{quoted}} /dev/null {'' if sys.platform == 'linux' else '#'}",
    "tmux": f"{STRIPPED} tmux -S {{folder}}/tmux new-session -d {{quoted}}",
}


def ways() -> dict[str, str]:
    return {
        name: way
        for name, way in WAYS.items()
        if name not in ("script", "tmux") or shutil.which(name)
    }


def run_agent(script: str, *, terminal: bool, name: str = "Bob", **env: str) -> str:
    """What a shell script says that runs as an agent, to its end."""
    # Not before its session is there: a short agent would otherwise have ended.
    if terminal:
        with wrapped(["sh", "-c", script], name=name, env=env) as program:
            program.wait(120)
            return program.output
    done = subprocess.run(
        [*RELAY, "wrap", "--name", name, "--", "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **env},
        text=True,
        timeout=120,
    )
    return done.stdout


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "no-terminal"])
def test_whatever_an_agent_starts_speaks_as_that_agent(terminal: bool, tmp_path: Path) -> None:
    lines = []
    for name, way in ways().items():
        command = f"{COMMAND} send Al --offline {shlex.quote(name)}"
        quoted = shlex.quote(f"{STRIPPED} {command}")
        lines.append(way.format(command, quoted=quoted, folder=tmp_path))
    # Until all are told: what has left the agent must not outlive it here.
    told = f"$({COMMAND} history --json | grep -c '\"id\"')"
    lines.append(f"until [ {told} -ge {len(lines)} ]; do sleep 0.1; done")
    said = run_agent("\n".join(lines), terminal=terminal)
    rows = relay_json("history")
    assert {row["body"]: row["from"] for row in rows} == dict.fromkeys(ways(), "Bob"), said


def test_an_agent_cannot_do_what_only_the_person_may(tmp_path: Path) -> None:
    config = tmp_path / "relay.config.py"
    config.write_text("patterns = {}\n")
    relay("trust", str(config))
    relay("agents")
    broker = relay_json("broker", "status")["pid"]
    trust = f"trust {config}"
    asked = [("stripped", verb) for verb in ("broker stop", "broker run", "items")]
    asked += [("stripped", "answer --all no"), ("stripped", f"trust --revoke {config}")]
    event = "ingest event " + shlex.quote('{"channel": "mail", "content": "x"}')
    asked += [("stripped", event), ("stripped", "person add Bob2 --type owner")]
    asked += [("stripped", "answer 4QXK7Z2M yes")]
    asked += [("stripped", verb) for verb in ("govern off --reason x", "govern on", "web")]
    asked += [("stripped", verb) for verb in ("up", "down", "cost")]
    asked += [(name, trust) for name in ways()]
    lines = []
    for number, (name, verb) in enumerate(asked):
        said, done = tmp_path / f"{number}.said", tmp_path / f"{number}.done"
        inner = f"{COMMAND} {verb} > {said} 2>&1; echo $? > {done}"
        command = f"sh -c {shlex.quote(inner)}"
        quoted = shlex.quote(f"{STRIPPED} {command}")
        lines.append(ways()[name].format(command, quoted=quoted, folder=tmp_path))
        lines.append(f"until [ -s {done} ]; do sleep 0.02; done")
    config.write_text("patterns = {'x': print}\n")
    run_agent("\n".join(lines), terminal=False)
    only = re.compile(
        r"relay: only the person may [a-z ]+, not (an|the) agent( Bob)?\n.*counts as.*\n"
    )
    for number, (name, verb) in enumerate(asked):
        assert only.fullmatch((tmp_path / f"{number}.said").read_text()), f"{name}: {verb}"
        assert (tmp_path / f"{number}.done").read_text() == "1\n", f"{name}: {verb}"
    assert "trusted       changed" in relay("trust", "--show", str(config))
    assert relay_json("broker", "status")["pid"] == broker


#: The person's own program, which is called for what an agent says and passes that on.
PASSES_ON = """
import subprocess, sys
def deploy(target, message, ctx):
    subprocess.run([sys.executable, "-m", "relay", "send", "Al", "--offline", message], check=True)
patterns = {"deploy": deploy}
"""
#: Asks the broker itself, with whatever it takes for a proof.
FORGES = """
from relay.broker.client import connect
from relay.core.errors import RelayError
from relay.core.paths import Home
claims = [
    dict(proven=True, from_kind="person", origin="person", unproven=False),
    dict(attributes={"proven": True, "from_kind": "person"}, meta={"proven": True}),
    {"from": OWNER}, {"from": "Carol"}, dict(re=ID), dict(auth={}), dict(auth=None),
]
with connect(Home.from_env()) as client:
    for claim in claims:
        try: client.request("send", to="Al", body="forged", offline=True, **claim)
        except RelayError as error: print(error.message, flush=True)
    for outside in ({"channel": "relay", "content": "x"}, {"channel": "mail", "content": "x"}):
        for ask in (dict(outside=outside), dict(kind="note", body="x", meta={"proven": True})):
            try: client.request("event", **ask)
            except RelayError as error: print(error.message, flush=True)
"""


def proven() -> list[str]:
    """Of which messages agents are told that they are their user's."""
    with connect(Home.from_env()) as client:
        rows = client.request(HISTORY, kind="*", limit=500)["rows"]
    pushes = [cast(DeliverPush, {"to": "", "attempt": 0, "nonce": "", **row}) for row in rows]
    return [push["body"] for push in pushes if message_from(push).proven]


def test_only_the_persons_own_word_comes_as_the_users(tmp_path: Path) -> None:
    own = relay("send", "Al", "--offline", "own").split()[0]
    relay("send", "Al", "--offline", "--from", "Carol", "as Carol")
    forge = FORGES.replace("OWNER", repr(owner_name())).replace("ID", repr(own))
    lines = [f"{STRIPPED} {_PYTHON} -c {shlex.quote(forge)}"]
    lines += [f"{COMMAND} send Al --offline --reply {own} reply; {COMMAND} ask Al --timeout 0.1 x"]
    said = run_agent("\n".join(lines), terminal=False)
    assert "cannot speak as" in said and len(relay_json("history")) > 4, said
    (tmp_path / "relay.config.py").write_text(PASSES_ON)
    relay("trust", str(tmp_path / "relay.config.py"))
    with wrapped(python(SAY), name="Eve", cwd=tmp_path) as eve:
        wait_registered("Eve")
        eve.type(say("@deploy:now passed on"))
        wait_until(lambda: "passed on" in relay("history"), 30, "the handler")
        kill_broker()  # the next one has not heard of this run
        eve.type(say("@deploy:now once more"))
        wait_until(lambda: "once more" in relay("history"), 30, "the handler")
    assert proven() == ["own"]


def _is_left() -> bool:
    """Whether a monitor of this test's home still runs."""
    name = mark(os.environ["RELAY_HOME"])
    found = (read_process(int(one.name)) for one in Path("/proc").iterdir() if one.name.isdigit())
    return any(process is not None and process.name == name for process in found)


@pytest.mark.parametrize(
    ("terminal", "pump_dies"), [(False, False), (True, True)], ids=["ended", "its-pump-was-killed"]
)
def test_what_an_agent_leaves_behind_is_still_its_own(
    terminal: bool, pump_dies: bool, tmp_path: Path
) -> None:
    config, said, go = tmp_path / "relay.config.py", tmp_path / "said", tmp_path / "go"
    config.write_text("patterns = {}\n")
    asked = [f"trust {config}", "broker stop", "send Al --offline late"]
    verbs = "; ".join(f"{COMMAND} {verb}" for verb in asked)
    later = f"until [ -e {go} ]; do sleep 0.05; done; ({verbs}) > {said} 2>&1; echo x >> {said}"
    kill = "; kill -9 $(ps -o ppid= -p $PPID)" if pump_dies else ""
    # Not before its session is there, so that the broker knows its name.
    script = (
        f"{COMMAND} send Al --offline now; {_DAEMON} sh -c {shlex.quote(later)} <&- >&- 2>&-{kill}"
    )
    run_agent(script, terminal=terminal)
    assert _is_left()
    go.touch()
    wait_until(lambda: said.exists() and said.read_text().endswith("x\n"), 60)
    assert said.read_text().count("only the person may") == 2
    assert "trusted       no" in relay("trust", "--show", str(config))
    assert [row["from"] for row in relay_json("history")] == ["Bob", "Bob"], said.read_text()
    wait_until(lambda: not _is_left(), 20, "the end of the monitor")


def _hides_ancestors() -> bool:
    words = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "true"]
    return bool(shutil.which("unshare")) and subprocess.run(words, check=False).returncode == 0


def test_a_sandbox_that_hides_its_ancestors_makes_no_agent_the_person(tmp_path: Path) -> None:
    if not _hides_ancestors():
        pytest.skip("no process may have a /proc of its own here")
    config = tmp_path / "relay.config.py"
    config.write_text("patterns = {}\n")
    verbs = ("send Al --offline x", f"trust {config}", "broker stop")
    sandbox = "unshare --user --map-root-user --pid --fork --mount-proc sh -c"
    inside = shlex.quote("; ".join(f"{COMMAND} {verb}" for verb in verbs))
    said = run_agent(f"env -u RELAY_TOKEN {sandbox} {inside}", terminal=False)
    assert [row["from"] for row in relay_json("history")] == ["Bob"], said
    assert said.count("only the person may") == 2, said
    # Who does not even say that it is an agent's cannot prove the broker from there.
    inside = shlex.quote("; ".join(f"{HASTY} {verb}" for verb in verbs))
    said = run_agent(f"{STRIPPED} {sandbox} {inside}", terminal=False)
    assert [row["from"] for row in relay_json("history")] == ["Bob"], said
    assert "only the person may" in said and "runs in another container" in said
    assert "trusted       no" in relay("trust", "--show", str(config))


def test_what_the_person_does_says_from_which_terminal(tmp_path: Path) -> None:
    config = tmp_path / "relay.config.py"
    config.write_text("patterns = {}\n")
    script = f"tty; {COMMAND} send Al --offline hello; {COMMAND} trust {config}; echo DONE"
    with Wrapped.directly(["sh", "-c", script]) as program:
        program.wait_for("DONE")
        [terminal] = re.findall(r"/dev/(\S+)", program.output)[:1]
    [row] = relay_json("history")
    where = rf"{re.escape(terminal)} \(pid \d+\)"
    assert re.search(rf"^via: +{where}$", relay("show", row["id"]), re.M)
    assert re.search(rf"^trusted +yes, from {where}$", relay("trust", "--show", str(config)), re.M)


def test_a_wrap_inside_a_wrap_speaks_for_itself() -> None:
    inner = f"{STRIPPED} {COMMAND} send Al --offline inner; sleep 0.1"
    script = (
        f"{COMMAND} wrap --name Inner -- sh -c {shlex.quote(inner)}\n"
        f"{STRIPPED} {COMMAND} send Al --offline outer"
    )
    said = run_agent(script, terminal=True, name="Outer")
    senders = {row["body"]: row["from"] for row in relay_json("history")}
    assert senders == {"inner": "Inner", "outer": "Outer"}, said


def test_the_token_of_another_run_is_refused(tmp_path: Path) -> None:
    give = f"printf 'RELAY_RUN=%s RELAY_TOKEN=%s' $RELAY_RUN $RELAY_TOKEN > {tmp_path}/token; cat"
    with wrapped(["sh", "-c", give], name="Al"):
        wait_registered("Al")
        copied = (tmp_path / "token").read_text()
        said = run_agent(f"env {copied} {COMMAND} send Al --offline forged", terminal=False)
        assert "inside the agent Bob, and RELAY_RUN names another" in said
        assert relay_json("history") == []


def test_outside_a_run_without_its_token_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wrapped(["sh", "-c", f"printf %s $RELAY_RUN > {tmp_path}/run; cat"], name="Al"):
        wait_registered("Al")
        with monkeypatch.context() as outside:
            outside.setenv("RELAY_RUN", (tmp_path / "run").read_text())
            for token in ("", "guessed"):
                outside.setenv("RELAY_TOKEN", token)
                said = relay("send", "Al", "who am I", status=1)
                assert said == "relay: RELAY_RUN names an agent, and RELAY_TOKEN is not its token\n"
        assert relay_json("history") == []


#: Connects in a child that has ended before anybody looks, and asks over that connection.
GONE = """import json, os, socket, sys
where, run, token = sys.argv[1:]
link = socket.socket(socket.AF_UNIX)
if not os.fork():
    link.connect(where)
    os._exit(0)
os.wait()
auth = {"run": run, "token": token}
ask = {"n": 1, "op": "send", "to": "Bob", "body": "forged", "offline": True, "auth": auth}
link.sendall(json.dumps(ask).encode() + b"\\n")
print("ASKED", flush=True)
print(link.makefile().readline())
"""
#: The same from below a monitor that nobody knows.
MASKED = """import os, sys
from relay.broker import client
from relay.core.paths import Home
from relay.core.processes import MARK
client.KNOWN = 1.0
run, token = sys.argv[2:]
open("/proc/self/comm", "w").write(MARK + "0")
if not os.fork():
    print("ASKED", flush=True)
    with client.connect(Home.from_env()) as asked:
        auth = {"run": run, "token": token}
        try:
            asked.request("send", to="Bob", body="forged", offline=True, auth=auth)
        except Exception as error:
            print(error, flush=True)
    os._exit(0)
os.wait()
"""


def test_a_sandbox_makes_no_agent_the_person_where_no_broker_runs(tmp_path: Path) -> None:
    if not _hides_ancestors():
        pytest.skip("no process may have a /proc of its own here")
    config = tmp_path / "relay.config.py"
    config.write_text("patterns = {}\n")
    asked = f"{HASTY} trust {config}; {HASTY} send Al --offline x; echo DONE"
    sandbox = "unshare --user --map-root-user --pid --fork --mount-proc"
    script = f"read go; {STRIPPED} -u RELAY_SOCKET {sandbox} sh -c {shlex.quote(asked)}; cat"
    with wrapped(["sh", "-c", script], name="Bob") as program:
        wait_registered("Bob")
        session = session_pid(program)
        assert session is not None
        os.kill(session, signal.SIGSTOP)  # so that it starts no broker
        try:
            kill_broker()
            program.type("\n")
            program.wait_for("DONE", 60)
        finally:
            os.kill(session, signal.SIGCONT)
        assert "only the person may" in program.output
        assert "an agent starts none" in program.output
    assert "trusted       no" in relay("trust", "--show", str(config))
    assert relay_json("history") == []


def _answer_to_who_hides(way: str, token: list[str]) -> str:
    status = relay_json("broker", "status")
    words = [sys.executable, "-c", way, status["socket"], *token]
    if way is GONE:
        os.kill(status["pid"], signal.SIGSTOP)
    try:
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as asking:
            assert asking.stdout is not None
            assert asking.stdout.readline() == "ASKED\n"
            os.kill(status["pid"], signal.SIGCONT)
            return asking.communicate(timeout=60)[0]
    finally:
        os.kill(status["pid"], signal.SIGCONT)


def test_the_token_of_a_run_counts_for_nobody_who_hides(tmp_path: Path) -> None:
    give = f"printf '%s %s' $RELAY_RUN $RELAY_TOKEN > {tmp_path}/token; cat"
    refusal = re.compile("cannot tell who is asking|not known to the broker")
    with wrapped(["sh", "-c", give], name="Al") as program:
        wait_registered("Al")
        session = session_pid(program)
        assert session is not None
        token = (tmp_path / "token").read_text().split()
        for way in (GONE, MASKED):
            assert refusal.search(_answer_to_who_hides(way, token))
        os.kill(session, signal.SIGSTOP)
        try:  # nor by a broker that does not know the run yet
            kill_broker()
            relay("agents")
            for way in (GONE, MASKED):
                assert refusal.search(_answer_to_who_hides(way, token))
            assert relay_json("history") == []
        finally:
            os.kill(session, signal.SIGCONT)


def test_nobody_takes_a_name_whose_session_is_away() -> None:
    with wrapped(["cat"], name="Al") as program:
        wait_registered("Al")
        session = session_pid(program)
        assert session is not None
        os.kill(program.pid, signal.SIGSTOP)  # so that it starts no other
        try:
            os.kill(session, signal.SIGKILL)
            me: dict[str, Any] = {"name": "Al", "run": "mine", "token": "mine", "kind": "x"}
            with connect(Home.from_env()) as client:
                for command in ("during", "after"):
                    with pytest.raises(NameTaken, match="another agent called Al is running"):
                        client.request(REGISTER, command=command, **me)
                    if command == "during":
                        wait_until(lambda: "deaf" in relay("agents"), 20, "the end of its grace")
        finally:
            os.kill(program.pid, signal.SIGCONT)
        wait_registered("Al")


def test_in_another_home_an_agent_is_not_the_person_either(tmp_path: Path) -> None:
    other = f"RELAY_HOME={tmp_path}/other"
    subprocess.run(["env", other, *RELAY, "agents"], check=True, capture_output=True)
    script = f"{STRIPPED} {other} {HASTY} send Al --offline hello"
    try:
        assert "this run of an agent is not known to the broker" in run_agent(
            script, terminal=False
        )
    finally:
        subprocess.run(["env", other, *RELAY, "broker", "stop"], check=True, capture_output=True)


def test_a_broker_comes_back_without_what_an_agent_says_of_its_limits() -> None:
    relay("agents")
    pid = relay_json("broker", "status")["pid"]
    script = (
        f"{COMMAND} send Al --offline one; kill -9 {pid}\n"
        f"{STRIPPED} RELAY_RATE_MAX=77 {COMMAND} send Al --offline two"
    )
    said = run_agent(script, terminal=False)
    assert [(row["from"], row["body"]) for row in relay_json("history")] == [
        ("Bob", "one"),
        ("Bob", "two"),
    ], said
    after = relay_json("broker", "status")["pid"]
    assert after != pid
    assert b"RELAY_RATE_MAX=77" not in Path(f"/proc/{after}/environ").read_bytes()


def test_nobody_outside_believes_a_broker_that_an_agent_started(tmp_path: Path) -> None:
    theirs = f"RELAY_HOME={tmp_path}/theirs"
    script = f"{STRIPPED} {theirs} {HASTY} send Al --offline x; echo DONE; cat"
    with wrapped(["sh", "-c", script], name="Bob") as program:
        program.wait_for("DONE")
        ask = ["env", theirs, *RELAY, "agents"]
        refused = subprocess.run(ask, capture_output=True, text=True, timeout=60)
        assert refused.returncode == 1 and "was started by an agent" in refused.stderr
        found = re.search(r"kill (\d+)", refused.stderr)
        assert found is not None
        os.kill(int(found[1]), signal.SIGTERM)


#: Takes the place of the socket argv[1]: a child listens, hands over what it has opened and ends,
#: if argv[2] says so; its parent answers as who is expected there would, and writes down in the
#: file argv[4] what it was asked. argv[3] is a process that is in the way, or 0.
LIAR = """import json, os, signal, socket, sys, threading
place, how, other, told = sys.argv[1:]
ours, theirs = socket.socketpair()
if not os.fork():
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place + "x")
    listener.listen(64)
    socket.send_fds(theirs, [b"x"], [listener.fileno()])
    if how == "gone": os._exit(0)
    signal.pause()
_, [fd], _, _ = socket.recv_fds(ours, 1, 1)
if how == "gone": os.wait()
listener = socket.socket(fileno=fd)
if int(other): os.kill(int(other), signal.SIGKILL)
os.rename(place + "x", place)
print("LISTENS", flush=True)
def serve(link):
    for line in link.makefile("rb"):
        with open(told, "ab") as file: file.write(line)
        asked = json.loads(line)
        if "cols" in asked:
            link.sendall(b'{"ok": true, "name": "Bob"}\\n\\x1b]52;c;cm0=\\x07\\x1b[HPWNED')
            with open(told, "ab") as file: file.write(link.recv(999))
            return
        row = {"to": "Bob", "state": "seen", "attempts": 1, "proof": "x"}
        link.sendall(json.dumps({"n": asked["n"], "ok": True, "protocol": 1, "version": "0.1.0",
            "person": True, "name": "x", "waiting": 0, "id": asked.get("id"), "deliveries": [row],
            "agents": [], "state": "idle", "wants": []}).encode() + b"\\n")
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


def test_nobody_believes_an_agent_that_poses_as_the_broker(tmp_path: Path) -> None:
    told = tmp_path / "told"
    with wrapped(python(ECHO), name="Bob"):
        wait_registered("Bob")
        for how in ("gone", "there"):
            status = relay_json("broker", "status")
            lie = [status["socket"], how, str(status["pid"]), str(told)]
            with wrapped([sys.executable, "-c", LIAR, *lie], name="Eve") as eve:
                eve.wait_for("LISTENS")
                # A broker of the person's takes the place, and Bob's session comes back to it.
                relay("send", "Bob", how, "--wait=30")
                assert states(body=how) == ["seen"]
            assert not told.exists(), told.read_text()


def test_nobody_types_into_what_poses_as_an_agents_terminal(tmp_path: Path) -> None:
    for name in ("Bob", "Carol"):
        relay("spawn", name, "--", *python(ECHO))
    try:
        home, told = Home.from_env(), tmp_path / "told"
        place = home.host_socket("Bob")
        for how in ("gone", "there"):
            lie = [place, how, "0", str(told)]
            with wrapped([sys.executable, "-c", LIAR, *lie], name="Eve") as eve:
                eve.wait_for("LISTENS")
                with Wrapped.directly([*RELAY, "attach", "Bob"]) as person:
                    person.wait_for("poses as the terminal of Bob|PWNED")
                    assert "PWNED" not in person.output
            assert not told.exists(), told.read_text()
        os.rename(home.host_socket("Carol"), place)
        with Wrapped.directly([*RELAY, "attach", "Bob"]) as person:
            person.wait_for("what answers in place of Bob is the terminal of another agent")
    finally:
        for name in ("Bob", "Carol"):
            relay("release", name, "--now")


#: Executes argv[2:] as the child of a child of …, argv[1] times.
DEEP = """import os, sys
for _ in range(int(sys.argv[1])):
    if pid := os.fork():
        os.waitpid(pid, 0)
        os._exit(0)
for name in ("RELAY_RUN", "RELAY_TOKEN", "RELAY_SOCKET"): os.environ.pop(name, None)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def test_nobody_is_so_far_below_an_agent_that_it_is_the_person(tmp_path: Path) -> None:
    config = tmp_path / "relay.config.py"
    config.write_text("patterns = {}\n")
    relay("agents")
    place = relay_json("broker", "status")["socket"]
    verbs = f"{COMMAND} trust {config}; {COMMAND} mcp --http"
    deep = shlex.join([sys.executable, "-I", "-S", "-c", DEEP, "100", "sh", "-c", verbs])
    # Not before its session is there, which would start another broker.
    aside = f"{COMMAND} send Al --offline x; mv {place} {place}x; {deep}; mv {place}x {place}"
    with wrapped(["cat"], name="Carol"):
        wait_registered("Carol")
        said = run_agent(aside, terminal=False)
    assert said.count("only the person may") == 2, said
    assert "trusted       no" in relay("trust", "--show", str(config))


def test_an_agent_cannot_register_itself_in_place_of_its_session(tmp_path: Path) -> None:
    take = (
        "import os, signal, sys\n"
        "from relay.broker.client import connect\n"
        "from relay.core.errors import RelayError\n"
        "from relay.core.paths import Home\n"
        "run, token = os.environ['RELAY_RUN'], os.environ['RELAY_TOKEN']\n"
        "fields = dict(kind='x', cwd='/', command='x')\n"
        "input()\n"
        "me = dict(name='Bob', run=run, token=token)\n"
        "for pid in (None, os.getpid(), os.getppid()):\n"
        "    with connect(Home.from_env()) as client:\n"
        "        try: client.request('register', pid=pid, **me, **fields)\n"
        "        except RelayError as error: print(error.message, flush=True)\n"
        "        else: print('TAKEN', flush=True)\n"
    )
    with wrapped(python(take), name="Bob") as program:
        wait_registered("Bob")
        kill_session(program)
        program.type("\n")
        program.wait_for(
            "only the session that relay started for a run can register it" + ".*only" * 2
        )
        assert "TAKEN" not in program.output


def test_after_a_kill_of_session_and_broker_an_agent_is_still_itself() -> None:
    with wrapped(python(ECHO), name="Al"):
        wait_registered("Al")
        script = f"read go; {STRIPPED} {COMMAND} send Al hello; cat"
        with wrapped(["sh", "-c", script], name="Bob") as program:
            wait_registered("Bob")
            os.kill(relay_json("broker", "status")["pid"], signal.SIGKILL)
            kill_session(program)
            program.type("\n")
            wait_until(lambda: relay_json("history"), 30, "the message")
            assert [row["from"] for row in relay_json("history")] == ["Bob"], program.output
