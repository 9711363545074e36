"""What hurt the users of relay's predecessor most, from its issue tracker: each must not happen.

What is a matter of the text alone is in tests/directive/test_peer_failures.py; crashes are in
test_kills.py, and who is not there yet in tests/broker/test_server.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from relay.broker.client import connect
from relay.core.paths import Home
from relay.protocol.message_ops import SEND
from tests.directive.envelope_reader import read
from tests.e2e import tui
from tests.e2e.wrapped import (
    ECHO,
    python,
    relay,
    relay_json,
    send_in_vain,
    states,
    wait_registered,
    wrapped,
)
from tests.support import wait_until

#: Reads nothing until its input holds a line "go", which the person types.
DEAF = (
    "import sys, os, select\n"
    "print('deaf', flush=True)\n"
    "while not os.path.exists(sys.argv[1]): select.select([], [], [], 0.05)\n"
    "for line in sys.stdin: print('GOT', line.strip(), flush=True)\n"
)


def full_screen(log: Path, *options: str) -> list[str]:
    return [sys.executable, tui.__file__, str(log), *options]


def submitted(log: Path) -> list[str]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def burst(name: str, bodies: list[str]) -> None:
    with connect(Home.from_env()) as client:
        for body in bodies:
            client.request(SEND, to=name, body=body)


def one_row(body: str) -> dict[str, str]:
    (row,) = [row for row in relay_json("history") if row["body"] == body]
    assert isinstance(row, dict)
    return row


def test_a_busy_receiver_gets_it_when_it_reads_again_and_seen_is_not_said_before(
    tmp_path: Path,
) -> None:
    go = tmp_path / "go"
    with wrapped([*python(DEAF), str(go)], name="Bob") as bob:
        wait_registered("Bob")
        relay("send", "Bob", "are you listening")
        wait_until(lambda: states() == ["submitted"], 20)
        burst("Bob", [f"number {number} " + "x" * 200 for number in range(40)])
        assert "seen" not in states()
        go.write_text("")
        bob.wait_for("GOT Relay message .*are you listening.*number 39", 60)
        wait_until(lambda: states() == ["seen"] * 41, 30)


def test_a_long_message_arrives_whole_and_in_its_own_words(tmp_path: Path) -> None:
    body = "\n".join(f"line {n}: äöü €uro 'quotes' \"and\" `ticks` $HOME\t!" for n in range(250))
    log = tmp_path / "log"
    with wrapped(full_screen(log, "lose-enters=1"), name="Tui") as screen:
        wait_registered("Tui")
        screen.wait_for("❯")
        relay("send", "Tui", "-", "--wait=60", stdin=body)
        (text,) = submitted(log)  # Enter was pressed until it was taken
        assert [one.body for one in read(text.replace("\r", "\n"))] == [body]


def test_the_persons_draft_is_neither_sent_nor_spoilt(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with wrapped(full_screen(log), name="Tui") as screen:
        wait_registered("Tui")
        screen.wait_for("❯")
        screen.type("my own dra")
        screen.wait_for("my own dra")
        send_in_vain("Tui", "later please", "draft")
        screen.type("ft\r")
        wait_until(lambda: len(submitted(log)) == 2, 30)
        assert submitted(log)[0] == "my own draft" and "later please" in submitted(log)[1]


def test_nothing_is_pressed_in_a_dialog(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with wrapped(full_screen(log, "dialog"), name="Tui") as screen:
        wait_registered("Tui")
        screen.wait_for("1. Yes")
        send_in_vain("Tui", "not an answer", "dialog")
        assert submitted(log) == []
        screen.type("\x1b")
        wait_until(lambda: len(submitted(log)) == 1, 30)
        assert "not an answer" in submitted(log)[0]


def test_an_echo_is_no_answer() -> None:
    with wrapped(python(ECHO), name="Bob") as bob, wrapped(python(ECHO), name="Alice"):
        wait_registered("Alice", "Bob")
        relay("send", "Bob", "-", "--wait=30", stdin="quote:\n@relay:Alice fake\n\n@relay:* all")
        relay("send", "Bob", "and done", "--wait=30")
        bob.wait_for("GOT .*and done")
        assert len(relay_json("history")) == 2


def test_one_that_does_not_read_holds_up_nobody_else(tmp_path: Path) -> None:
    with (
        wrapped([*python(DEAF), str(tmp_path / "never")], name="Deaf"),
        wrapped(python(ECHO), name="Bob") as bob,
    ):
        wait_registered("Deaf", "Bob")
        burst("Deaf", [f"unread {number} " + "x" * 500 for number in range(30)])
        relay("send", "Bob", "quick", "--wait=20")
        bob.wait_for("GOT .*quick")


def test_ctrl_c_throws_no_message_away(tmp_path: Path) -> None:
    """The terminal drops what was not read, and it would count as read."""
    go = tmp_path / "go"
    deaf = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + DEAF
    with wrapped([*python(deaf), str(go)], name="Bob") as bob:
        wait_registered("Bob")
        bob.wait_for("deaf")
        relay("send", "Bob", "not to be lost")
        wait_until(lambda: one_row("not to be lost")["state"] == "submitted", 20)
        bob.type("\x03")
        bob.wait_for("\\^C")
        go.write_text("")
        bob.wait_for("GOT Relay message .*not to be lost", 60)
        wait_until(lambda: one_row("not to be lost")["state"] == "seen", 20)
        assert bob.output.count("GOT Relay message") == 1
