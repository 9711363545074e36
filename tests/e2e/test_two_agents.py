"""Two wrapped programs talk, through real terminals, sessions and a broker."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.wrapped import (
    ECHO,
    SAY,
    python,
    relay,
    relay_json,
    say,
    send_in_vain,
    states,
    wait_registered,
    wrapped,
)
from tests.support import wait_until

pytestmark = pytest.mark.smoke


def test_a_message_arrives_and_is_answered() -> None:
    answer = (
        "import sys, re\n"
        "for line in sys.stdin:\n"
        "    m = re.search(r'from agent (\\w+).*?: (.*?) \\(', line)\n"
        "    if m: print(f'@relay:{m[1]} you said {m[2]}\\n', flush=True)\n"
    )
    with wrapped(python(answer), name="Bob") as bob, wrapped(python(SAY), name="Alice") as alice:
        wait_registered("Alice", "Bob")
        alice.type(say("@relay:Bob hello there\n"))
        bob.wait_for(r"Relay message \[\w+\] from agent Alice: hello there")
        alice.wait_for(r"Relay message \[\w+\] from agent Bob: you said hello there")
        wait_until(lambda: states() == ["seen", "seen"], 20, "both receipts")


#: The same that only shows what it is told otherwise.
SAY_OR_SHOW = (
    "import sys\n"
    "for line in sys.stdin:\n"
    "    print(eval(line) if line[:1] in '\"\\'' else 'GOT ' + line, flush=True)\n"
)


def test_a_channel_a_role_and_who_came_meanwhile() -> None:
    with wrapped(python(SAY_OR_SHOW), name="Alice", options=["--role", "lead"]) as alice:
        wait_registered("Alice")
        alice.type(say("@relay:join #build\n"))
        alice.wait_for(r"Relay notice .*Alice is in #build now, with nobody else yet")
        alice.type(say("@relay:presence #build\n"))
        alice.wait_for("when anybody in #build arrives or leaves")
        options = ["--role", "reviewer,tester", "--join", "build"]
        with wrapped(python(ECHO), name="Bob", options=options) as bob:
            wait_registered("Bob")
            alice.type(say("@relay:#build is it green?\n"))
            bob.wait_for(
                "GOT Relay message .* from agent Alice to #build: is it green.*@relay:#build"
            )
            alice.type(say("@relay:reviewer have a look\n"))
            bob.wait_for("to the role reviewer: have a look")
            # Told with the next message, and not before.
            assert "has joined" not in alice.output
            relay("send", "lead", "well?")
            alice.wait_for("to the role lead: well.*Since your last message Bob has joined")
            assert relay_json("agents")[1]["roles"] == ["reviewer", "tester"]


def test_a_draft_is_left_alone() -> None:
    with wrapped(python(ECHO), name="Bob") as bob:
        wait_registered("Bob")
        bob.type("my dra")
        bob.wait_for("my dra")
        first = send_in_vain("Bob", "not now", "draft")
        # What is not delivered yet can be withdrawn, though Bob's session has it in hand.
        second = send_in_vain("Bob", "never mind", "draft")
        assert [row["id"] for row in relay_json("inbox", "Bob")] == [first, second]
        assert "cancelled" in relay("cancel", second)
        bob.type("ft\n")
        bob.wait_for("GOT my draft")
        bob.wait_for("GOT Relay message .*: not now")
        relay("send", "Bob", "marker", "--wait=30")
        assert "never mind" not in bob.output and states(body="never mind") == ["cancelled"]
        assert "too late" in relay("cancel", first, status=1)


def test_what_the_person_types_is_not_the_agents_words() -> None:
    with wrapped(["cat"], name="Alice") as alice, wrapped(python(ECHO), name="Bob") as bob:
        wait_registered("Alice", "Bob")
        alice.type("hello\n")
        alice.wait_for("hello.*hello")
        # cat says it again, and that is the agent's; the echo of the keys alone is not.
        alice.type("@relay:Bob once only\n")
        bob.wait_for("once only")
        wait_until(lambda: states(body="once only") == ["seen"], 20)
        relay("send", "Bob", "marker", "--wait=30")
        bob.wait_for("GOT .*marker")
        assert len([row for row in relay_json("history") if row["body"] == "once only"]) == 1


def test_the_last_words_of_a_program_that_exits_at_once_are_sent() -> None:
    with wrapped(python(ECHO), name="Bob") as bob:
        wait_registered("Bob")
        with wrapped(["printf", "@relay:Bob last words"], name="Short") as short:
            assert short.wait() == 0
        bob.wait_for("GOT Relay message .* from agent Short: last words")


def test_the_innermost_wrap_hears_and_the_outer_ones_pass(tmp_path: Path) -> None:
    inner = tmp_path / "inner.py"
    inner.write_text(
        "import sys, subprocess\n"
        "name, *more = sys.argv[1:]\n"
        "if more:\n"
        "    words = [sys.executable, '-m', 'relay', 'wrap', '--name', more[0], '--']\n"
        "    subprocess.call([*words, sys.executable, __file__, *more])\n"
        "print(f'@relay:Bob from {name}\\n', flush=True)\n"
        "name != 'Outer' or input()\n"
    )
    with ExitStack() as stack:
        bob = stack.enter_context(wrapped(python(ECHO), name="Bob"))
        wait_registered("Bob")
        command = [sys.executable, str(inner), "Outer", "Middle", "Inner"]
        stack.enter_context(wrapped(command, name="Outer"))
        wait_until(lambda: states().count("seen") >= 3, 60, "three messages")
        bob.wait_for("from agent Outer: from Outer ")
        said = {(row["from"], row["body"]) for row in relay_json("history")}
        assert said == {(name, f"from {name}") for name in ("Inner", "Middle", "Outer")}
        assert len(states()) == 3


def test_an_agent_that_has_ended_is_known_to_have(tmp_path: Path) -> None:
    with wrapped(python(ECHO), name="Bob"):
        wait_registered("Bob")
    # At once, not when the broker has given up on its connection.
    wait_until(lambda: relay_json("agents")[0]["state"] == "gone", 2.0)
    assert relay_json("send", "Bob", "x")["deliveries"][0]["reason"] == "Bob is not running"
