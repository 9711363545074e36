"""A real run, recorded: what the replay says of it is what the live session did."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from tests.e2e.wrapped import kill_session, python, relay, relay_json, say, wait_registered, wrapped
from tests.support import wait_until

SECRET = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
#: Says what it is told to say, and takes everything else, such as messages, for a comment.
SAY = (
    "import sys\nfor line in sys.stdin:\n"
    "    print(eval(line) if line[:1] == chr(39) else 'OK', flush=True)\n"
)


def sent() -> list[dict[str, Any]]:
    return [row for row in relay_json("history") if row["from"] == "Ann"]


def test_a_recording_replays_what_was_sent_and_holds_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "ann.cast"
    with wrapped(python(SAY), name="Ann", options=["--record", str(path)]) as ann:
        wait_registered("Ann")
        ann.type(say("@relay:Bob please look\ninto it"))
        wait_until(lambda: len(sent()) == 1)
        ann.type(say(f"\nthe token is {SECRET} and tell @relay:Bob nothing"))
        ann.wait_for("nothing\r\n")
        ann.type(say("\n@relay:Cy [mode:steer] one more\n"))
        wait_until(lambda: len(sent()) == 2)
        relay("send", "Ann", "hello Ann")
        ann.wait_for("hello Ann")
        ann.type("\x04")
        assert ann.wait() == 0
    kept = path.read_text()
    assert SECRET not in kept and SECRET[4:12] not in kept
    assert "the token is ghp_" + "*" * 36 in kept
    events = [json.loads(line) for line in kept.splitlines()[1:]]
    assert "hello Ann" in "".join(data for _, code, data in events if code == "w")
    rows = relay_json("replay", str(path), "--misses")
    fired = sorted((row["directive"], row["body"]) for row in rows if row["fires"])
    assert fired == sorted((f"@relay:{row['to']}", row["body"]) for row in sent())
    assert len(fired) == 2 and {row["from"] for row in rows} == {"Ann"}
    assert any("tell @relay:Bob nothing" in row["directive"] for row in rows if row["missed"])
    assert r"@relay\:Cy [mode:steer]" in relay("replay", str(path))


def test_the_token_of_a_run_is_in_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "ann.cast"
    show = "import os; print('ENV', os.environ['RELAY_TOKEN'], 'END')"
    with wrapped(python(show), name="Ann", options=["--record", str(path)]) as ann:
        token = ann.wait_for("ENV (relay_run_[0-9a-f]{32}) END").group(1)
        assert ann.wait() == 0
    assert text(path) == "ENV relay_run_" + "*" * 32 + " END\r\n"
    assert token not in path.read_text()


#: Reads a name, and a password that the terminal does not show.
READER = """
import sys, termios
modes = termios.tcgetattr(0)
print("name?", flush=True)
name = sys.stdin.readline()
modes[3] &= ~termios.ECHO
termios.tcsetattr(0, termios.TCSANOW, modes)
print("password?", flush=True)
word = sys.stdin.readline()
print("bye", flush=True)
"""


def text(path: Path, code: str = "o") -> str:
    lines = path.read_text().splitlines()[1:]
    return "".join(data for _, kind, data in map(json.loads, lines) if kind == code)


def test_keys_are_recorded_only_on_demand_and_never_a_password(tmp_path: Path) -> None:
    for options, keys in (([], ""), (["--record-input"], "me\r")):
        path = tmp_path / f"{len(options)}.cast"
        with wrapped(python(READER), options=["--record", str(path), *options]) as program:
            program.wait_for("name")
            program.type("me\r")
            program.wait_for("password")
            program.type("hunter2\r")
            assert program.wait() == 0
            assert text(path) == program.output
        assert text(path, "i") == keys and text(path, "k").endswith("entered")
        assert "hunter2" not in path.read_text()


def test_without_a_terminal_there_is_nothing_to_record(tmp_path: Path) -> None:
    refused = relay("wrap", "--record", str(tmp_path / "b"), "--", "echo", "x", status=2)
    assert "nothing to record" in refused and not (tmp_path / "b").exists()


def test_the_agent_outlives_the_session_that_records_it(tmp_path: Path) -> None:
    path = tmp_path / "ann.cast"
    with wrapped(["cat"], name="Ann", options=["--record", str(path)]) as ann:
        ann.type("one\r")
        wait_until(lambda: path.exists() and "one\r\none" in text(path))
        kill_session(ann)
        ann.type("two\r")
        ann.wait_for("two\r\ntwo")
        ann.type("\x04")
        assert ann.wait() == 0
        ann.wait_for("is not complete: relay's session, which wrote it, was started again")
    assert "one" in text(path) and "two" not in text(path)


def test_a_killed_pump_leaves_a_recording_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "ann.cast"
    with wrapped(["cat"], name="Ann", options=["--record", str(path)]) as ann:
        ann.type("one\r")
        wait_until(lambda: path.exists() and "one\r\none" in text(path))
        os.kill(ann.pid, signal.SIGKILL)
        wait_until(lambda: "recording ends here" in text(path, "m"))
