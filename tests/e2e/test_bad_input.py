"""Wrong input gets a clear answer, and nothing is lost."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from relay.broker.loop_guard import HOPS_MAX
from relay.core.paths import Home
from tests.e2e.wrapped import ECHO, python, relay, relay_json, states, wait_registered, wrapped
from tests.support import wait_until

#: Says what the file that it is given holds, then reads.
SPEAK = (
    "import sys\n"
    "sys.stdout.buffer.write(open(sys.argv[1], 'rb').read()); sys.stdout.flush()\n"
    "for line in sys.stdin: print('GOT', line.strip(), flush=True)\n"
)


def speaker(tmp_path: Path, words: bytes) -> list[str]:
    file = tmp_path / "words"
    file.write_bytes(words)
    return [*python(SPEAK), str(file)]


#: What an agent may say wrongly, the last without an end, and what it is told.
WRONG = {
    b"@relay:Alice talking to myself\n\n": "cannot send to yourself",
    b"@relay:Bob\n\n": "the message is empty",
    b"@relay:Bbo hello\n\n": r"nobody is called Bbo yet\. Did you mean Bob",
    b"@relay:b@d/name x\n\n": "cannot be a name",
    b"@relay:Bob <<<\nnever closed\n": r"never closed with a line \\>>>",
}


def test_the_agent_is_told_what_went_wrong(tmp_path: Path) -> None:
    with wrapped(python(ECHO), name="Bob"):
        wait_registered("Bob")
        with wrapped(speaker(tmp_path, b"".join(WRONG)), name="Alice") as alice:
            for told in WRONG.values():
                alice.wait_for(f"Relay notice .*{told}")


@pytest.mark.parametrize(
    ("words", "turns", "note"),
    [("'again'", 1, "does it again"), ("str(n)", HOPS_MAX, "notices followed from one another")],
    ids=["the same", "each another"],
)
def test_an_agent_that_answers_notices_comes_to_an_end(words: str, turns: int, note: str) -> None:
    loop = (
        "import sys\n"
        "for n, line in enumerate(sys.stdin):\n"
        f"    print('@relay:no/' + {words} + ' hello\\n', flush=True)\n"
    )
    with wrapped(python(loop), name="Alice") as alice:
        wait_registered("Alice")
        alice.type("begin\n")
        wait_until(lambda: note in str(relay_json("status")), 60, "the end")
        assert len(set(re.findall(r"Relay notice (\S+):", alice.output))) == turns


def test_an_agent_whose_command_is_no_text_is_reached_and_control_bytes_arrive_harmless() -> None:
    with wrapped([*python(ECHO), os.fsdecode(b"caf\xe9")], name="Bob") as bob:
        wait_registered("Bob")
        [row] = relay_json("agents")
        assert row["command"].endswith(" 'caf\ufffd'")
        relay("send", "Bob", "-", "--wait=30", stdin="a\x1b[201~b\x07c\x00d\x03e")
        got = bob.wait_for("GOT Relay message [^\n]*")[0]
        assert "a␛[201~b" in got and "\x1b" not in got and "\x03" not in got


def test_what_the_agent_quotes_is_not_sent_and_invalid_utf8_is_heard(tmp_path: Path) -> None:
    said = (
        b"```\n@relay:Bob in a fence\n```\n"
        b"    @relay:Bob indented\n> @relay:Bob quoted\n`@relay:Bob` in code\n"
        b"\\@relay:Bob escaped\nsee @relay:Bob in a sentence\n@media:print {}\n"
        b"\n\xff\xfe\n@relay:Bob the only caf\xc3\xa9 \xff end\n\n"
    )
    with wrapped(python(ECHO), name="Bob") as bob:
        wait_registered("Bob")
        with wrapped(speaker(tmp_path, said), name="Alice"):
            bob.wait_for("GOT Relay message .*: the only café .* end")
            wait_until(lambda: states() == ["seen"], 30)


def test_an_agent_whose_broker_cannot_start_says_so_at_its_end(isolated_home: Path) -> None:
    home = Home(str(isolated_home))
    home.create()
    Path(home.ledger).write_text("this is no ledger, and is left alone\n" * 100)
    with wrapped(python(ECHO), name="Bob") as bob:
        bob.type("hello\n")
        bob.wait_for("GOT hello")
        wait_until(Path(home.run, "broker.failed").exists, what="the broker to fail")
        bob.type("\x04")
        assert bob.wait() == 0
    (said,) = [line for line in bob.output.splitlines() if line.startswith("relay:")]
    assert said.startswith("relay: Bob could not be reached by others: ")
