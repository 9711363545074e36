"""The console in a real terminal, before a real broker: what its person sees and does there."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from relay.__main__ import main
from relay.broker.client import BrokerClient, connect
from relay.config import names
from relay.core.ids import new_ulid
from relay.core.paths import Home
from relay.core.processes import AGENT
from relay.features.governance.ops import APPROVAL_ASK
from relay.protocol.agent_ops import AGENT_STATE, AGENTS, REGISTER
from relay.protocol.broker import Json
from relay.protocol.message_ops import SEND, STATE
from tests.broker.support import kill_broker, stop_broker
from tests.real_agents.terminal import Terminal

RELAY = [sys.executable, "-m", "relay"]
DOWN, ESC, CTRL_C, CTRL_F, CTRL_G, CTRL_P, CTRL_R = (
    *("\x1b[B", "\x1b", "\x03"),
    *("\x06", "\x07", "\x10", "\x12"),
)
BACKSPACE = "\x7f"


@pytest.fixture
def home(isolated_home: Path) -> Iterator[Home]:
    home = Home(str(isolated_home))
    yield home
    stop_broker(home)


@pytest.fixture
def bob(home: Home) -> Iterator[BrokerClient]:
    """An agent whose dialog waits for its person."""
    with connect(home) as client:
        claim = names.claim(home, "Bob", "claude", run_id="Bob")  # for a next broker it is there
        join(client, "Bob")
        client.request(AGENT_STATE, state="blocked", reason="asks to use Bash")
        yield client
    claim.release()


def join(client: BrokerClient, name: str) -> None:
    client.request(
        REGISTER, name=name, run=name, token="t", kind="claude", pid=0, cwd="/w", command=""
    )


def leave(client: BrokerClient) -> None:
    """Its session says that it has ended, so that nobody waits for it."""
    client.request(AGENT_STATE, state="gone")


def click(column: int, row: int) -> str:
    """The bytes of a click of the mouse; both count from 1."""
    return f"\x1b[<0;{column};{row}M\x1b[<0;{column};{row}m"


def take(agent: BrokerClient) -> Json:
    """What an agent is told next; it has seen it."""
    while (push := agent.next_push(20)) is not None and push["push"] != "deliver":
        pass
    assert push is not None
    agent.request(STATE, id=push["id"], state="delivering", attempt=1)
    agent.request(STATE, id=push["id"], state="submitted")
    agent.request(STATE, id=push["id"], state="seen")
    return push


def approval(agent: BrokerClient, why: str = "it cannot be undone") -> Json:
    """The person's word on a call of the agent's."""
    asked = {"what": "rm -rf build", "why": why, "intent": "I-1", "root": "/w"}
    fields: Json = {"tool": "Bash", **asked, "cwd": "/w", "asked_ms": time.time_ns() // 1_000_000}
    return dict(agent.request(APPROVAL_ASK, id=new_ulid(fields["asked_ms"]), seconds=60, **fields))


def test_a_person_looks_on_writes_reads_searches_and_leaves(
    home: Home, bob: BrokerClient, tmp_path: Path
) -> None:
    me = bob.request(AGENTS)["persons"][0]
    env = {**os.environ, "LANG": "C.UTF-8", "NO_COLOR": "1"}
    with Terminal(argv=RELAY, env=env, cwd=tmp_path) as console, ExitStack() as later:
        console.wait_match(r"▸Bob +blocked")
        console.wait_for("asks to use Bash")
        console.type("please deploy\r")
        assert take(bob)["body"] == "please deploy"
        console.wait_for(f"✓ {me} → Bob: please deploy")

        # What an agent writes is shown with its controls, and seen once a key was pressed.
        bob.request(SEND, to=me, body="All green\x1b[2J, 漢字")
        console.wait_for(f"· Bob → {me}: All green^[[2J, 漢字")
        console.wait_for("1 unread")
        console.type(DOWN)
        console.wait_for(f"✓ Bob → {me}: All green")

        # The wheel scrolls, and chooses nobody; "?" and "q" count at an empty line.
        console.type("\x1b[<64;5;5M" + "q")
        console.wait_for("leave? Enter: yes")
        console.wait_match(r"to Bob> q")
        console.type(ESC + "?")
        console.wait_for("q Enter    leave")
        console.type("q")
        console.wait_match(r"── traffic(.*\n)*to Bob>$")

        # ":" begins a command, as "/" does, and Esc takes it back. Enter and a click open an agent.
        console.type(":scr")
        console.wait_match("to Bob> /scr$")
        console.type(ESC)
        console.wait_match("to Bob>$")
        console.type("\r")
        console.wait_for("── screen of Bob")
        console.type(ESC + click(column=3, row=3))
        console.wait_for("── screen of Bob")
        console.type(ESC)
        console.wait_that(lambda: not console.shows("screen of Bob"), 10, "no screen")

        console.type(CTRL_F + "DEPLOY\r")
        console.wait_for("1 found: DEPLOY")
        assert not console.shows("All green")
        console.type(ESC)
        console.wait_for("All green")

        # What waits for the person is shown whole, and answered there.
        decided: list[Json] = []
        asks = threading.Thread(target=lambda: decided.append(approval(bob)))
        asks.start()
        console.wait_match(r"^\? Bob wants: .*rm -rf build")
        console.type(CTRL_R)
        console.wait_match(r"── Bob wants ─+\n(.*\n)*answer Bob>")
        console.type("yes" + ESC)
        console.wait_match("to Bob>$")  # an answer is no message
        console.type(CTRL_R + "yes" + CTRL_F + BACKSPACE * 5 + "screen\r")
        console.wait_match(r"── screen of Bob(.*\n)*to Bob>$")  # and becomes none by a command
        console.type(ESC)
        console.type("no problem" + CTRL_R)
        console.wait_match("answer Bob>$")  # and a message is no answer
        console.type(ESC)
        console.wait_match("to Bob>$")
        console.type(CTRL_P)
        console.wait_match("to Bob> no problem$")
        console.type(CTRL_C + CTRL_R + DOWN + DOWN)
        console.wait_match(r"> no  (.*\n)*answer Bob> no$")
        console.type(DOWN + "\x1b[A")
        console.wait_match(r"answer Bob> yes$")
        # A click chooses, too; on the choice that is chosen it answers.
        row = next(n for n, line in enumerate(console.lines(), 1) if "  no  " in line)
        console.type(click(column=40, row=row))
        console.wait_match(r"answer Bob> no$")
        console.type(" not on a Friday\r")
        asks.join(20)
        assert (decided[0]["granted"], decided[0]["note"]) == (False, "not on a Friday")
        console.wait_match("to Bob>$")

        # It fits into a small window; a verb of relay has all of it, and leaves again.
        console.resize(40, 15)
        console.wait_match(
            r"\A relay  1 agent .*\n▸Bob +blocked +\w+\n   asks to use Bash\n── traffic"
        )
        console.type("/status\r")
        console.wait_for("$ relay status")
        console.wait_for("broker: running")
        console.wait_for("Enter: back to the console")
        console.type("\r")
        console.wait_for("── traffic")
        assert console.text().endswith("to Bob>")

        # It goes on with the next broker, and says that there was another.
        kill_broker(home)
        console.wait_for("the broker was started again")
        join(later.enter_context(connect(home)), "Bob")
        with connect(home) as other:
            other.request(SEND, to="Bob", body="are you there?")
        console.wait_for("→ Bob: are you there?")

        # Agents are listed by what is typed, and none is attached to that has its own terminal.
        console.type("for whom? " + CTRL_G + "nobody")
        console.wait_for("none has nobody")
        console.type(ESC)
        console.wait_match(r"▸Bob (.*\n)*to Bob> for whom\?$")  # what was typed comes back
        console.type(CTRL_G + "bo\r")
        console.wait_match(r"1 of 1 agent: bo(.*\n)*to Bob> for whom\?$")
        console.type(CTRL_C)
        console.type("/attach\r")
        console.wait_for("Bob has a terminal of its own")

        # A message that nobody got is not lost.
        console.type("@Bbo are you there?\r")
        console.wait_match(
            r"nobody is called Bbo; did you mean\s+Bob\?\nto Bob> @Bbo are you there\?$"
        )
        console.type(CTRL_C + "/send Bbo one\r")
        console.wait_match("to Bob> /send Bbo one$")
        console.type(CTRL_C + "half a line" + CTRL_C)
        console.wait_match("to Bob>$")
        console.type(CTRL_C)
        console.wait_end()
        assert b"\x1b[?1049l" in console.raw  # the screen of before
        colours = re.findall(rb"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|4[0-7])[;m]", bytes(console.raw))
        assert colours == []


def test_what_is_typed_goes_to_an_agent_that_runs_or_the_prompt_says_otherwise(
    home: Home, tmp_path: Path
) -> None:
    env = {**os.environ, "LANG": "C.UTF-8"}
    with connect(home) as ada:
        join(ada, "Ada")
        leave(ada)
    with Terminal(argv=RELAY, env=env, cwd=tmp_path) as console:
        console.wait_match(r"^ Ada +gone(.*\n)*>$")
        with connect(home) as eve:
            with connect(home) as bob, connect(home) as dan:
                join(bob, "Bob")
                console.wait_match(r"▸Bob(.*\n)* Ada +gone(.*\n)*to Bob>$")
                join(dan, "Dan")
                join(eve, "Eve")

                # After an answer, or "later", it goes to the agent that asks.
                asks = threading.Thread(target=lambda: decided.append(approval(dan)))
                decided: list[Json] = []
                asks.start()
                console.wait_for("? Dan wants")
                console.type(CTRL_R + ESC)
                console.wait_match("to Dan>$")
                console.type("yes\r")
                console.wait_match(r"Dan waits for an answer; \^R(.*\n)*to Dan> yes$")
                console.type(CTRL_C + "/answer Dan yes\r")
                asks.join(20)
                assert decided[0]["granted"]
                console.type("half a line")
                console.wait_match("to Dan> half a line$")
                leave(bob)
                leave(dan)
            # What is being typed gets no other receiver when its own ends.
            console.wait_match(r"Dan has ended; a message .*\n.*\nto Dan \(gone\)> half a line$")
            console.type(CTRL_C + "\x1b[A" * 4)
            console.wait_match("to Eve>$")
            with connect(home) as fay:
                join(fay, "Fay")
                console.wait_match("^ Fay ")
                console.type(DOWN)
                console.wait_match("to Fay>$")
                leave(fay)
            console.wait_match(r"Fay has ended; now to Eve\n.*\nto Eve>$")


def test_in_a_tiny_window_a_question_is_read_page_by_page_and_answered(
    home: Home, bob: BrokerClient, tmp_path: Path
) -> None:
    env = {**os.environ, "LANG": "C.UTF-8"}
    with Terminal(argv=RELAY, env=env, cwd=tmp_path, rows=6, cols=20) as console:
        console.wait_match("to Bob>$")
        decided: list[Json] = []
        asks = threading.Thread(target=lambda: decided.append(approval(bob, "no way back " * 9)))
        asks.start()
        console.wait_for("? Bob wants")
        console.type(CTRL_R)
        console.wait_match(r"↓ \d+ more rows")
        console.type("no\r")
        console.wait_match(r"! read it to its end\n.*\nanswer Bob>$")
        # The arrows, and Enter, read on, and then the arrows choose; what is chosen is in sight.
        console.type("\r" + DOWN * 12)
        console.wait_for("PgUp: back up")
        console.type(DOWN + DOWN)
        console.wait_match(r"^> no(.*\n)*answer Bob> no$")
        row = next(n for n, line in enumerate(console.lines(), 1) if line.startswith("> no"))
        console.type(click(column=4, row=row))  # a click on what is chosen answers
        asks.join(20)
        assert not decided[0]["granted"]


def test_what_was_typed_for_a_question_is_put_away_when_it_is_no_longer_asked(
    home: Home, bob: BrokerClient, tmp_path: Path
) -> None:
    env = {**os.environ, "LANG": "C.UTF-8"}
    with Terminal(argv=RELAY, env=env, cwd=tmp_path) as console:
        decided: list[Json] = []
        asks = threading.Thread(target=lambda: decided.append(approval(bob)))
        asks.start()
        console.wait_for("? Bob wants")
        console.type(CTRL_R + "not on")
        console.wait_match("answer Bob> not on$")
        assert main(["answer", "Bob", "no"]) == 0
        console.wait_match("no longer asked: Esc$")
        console.type(ESC)
        console.wait_match("to Bob>$")
        asks.join(20)


def test_nothing_that_a_terminal_sends_ends_it_or_becomes_text(
    home: Home, bob: BrokerClient, tmp_path: Path
) -> None:
    env = {**os.environ, "LANG": "C.UTF-8"}
    with Terminal(argv=RELAY, env=env, cwd=tmp_path) as console:
        console.wait_match("to Bob>$")
        mouse = "\x1b[<0;;40M", "\x1b[<M", f"\x1b[<0;{'9' * 5000};1M", "\x1b[;;M", "\x1b[Mr!!"
        others = (
            "\x1b[I",
            "\x1b[?1;2c",
            "\x1b]11;rgb:00/00/00\x07",
            f"\x1b[{'1' * 99};1R",
        )
        for sent in (*mouse, *others):
            console.type(sent)
        console.type("a\x1b[200~ lot\nof 漢字\x1b[201~ b")
        console.wait_match(r"to Bob> a lot\n *of 漢字 b$")
        console.type(CTRL_C)
        console.wait_match("to Bob>$")
        console.type("\x1b[200~a paste without an end")
        console.wait_quiet()  # nothing shows that it was read
        console.type(CTRL_C)
        console.wait_quiet()
        console.type("goes on")
        console.wait_match("to Bob> goes on$")


def test_where_nothing_can_be_drawn_it_says_what_to_use(
    home: Home, bob: BrokerClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["console"]) == 2
    assert "relay watch prints what happens" in capsys.readouterr().err
    assert main(["console", "--plain"]) == 2
    assert "the option --plain is gone" in (told := capsys.readouterr().err)
    assert "relay watch" in told
    argv = ["env", "TERM=dumb", *RELAY]
    with Terminal(argv=argv, env=dict(os.environ), cwd=tmp_path) as terminal:
        terminal.wait_for("relay watch prints what happens")
        terminal.wait_end()
        assert not terminal.shows("asks to use Bash")


def test_an_agent_opens_no_console(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("relay.broker.client.own_side", lambda: AGENT)
    assert main(["console"]) == 1
    assert "only the person may open the console" in capsys.readouterr().err


def test_a_fault_of_its_own_ends_it_without_a_traceback(
    home: Home, bob: BrokerClient, tmp_path: Path
) -> None:
    faulty = (
        "import sys; from relay.__main__ import main;"
        "from relay.features.console import console_view as view;"
        "view._View._help = lambda self, room: 1 / 0;"
        "sys.exit(main(['console']))"
    )
    env = {**os.environ, "LANG": "C.UTF-8"}
    with Terminal(argv=[sys.executable, "-c", faulty], env=env, cwd=tmp_path) as console:
        console.wait_for("asks to use Bash")
        console.type("?")
        console.wait_for("internal error in relay", 20)
        console.wait_end()
        assert "Traceback" not in console.text() and b"\x1b[?1049l" in console.raw
