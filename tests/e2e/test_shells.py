"""A wrapped shell or interpreter: relay types nothing into it, and hears it only if told to."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.test_programs import installed, node, outcome
from tests.e2e.wrapped import (
    ECHO,
    Wrapped,
    python,
    relay,
    relay_json,
    send_in_vain,
    states,
    wait_registered,
    wrapped,
)
from tests.support import wait_until

#: How each is started, what it shows at its prompt, and how it is made to say something.
SHELLS = {
    "bash": (["bash", "--norc", "-i"], "ready[$]", "echo '{}'"),
    "zsh": (["zsh", "-f"], "ready[$]", "echo '{}'"),
    "fish": (["fish", "--no-config"], "[#>]", "echo '{}'"),
    "python": ([sys.executable], ">>>", "print('{}')"),
    "node": (["node"], ">", "console.log('{}')"),
}
UNHEARD = "relay wrap --hear hears it"


@contextmanager
def a_shell(which: str, cwd: Path, options: Sequence[str] = ()) -> Iterator[Wrapped]:
    argv, prompt, _ = SHELLS[which]
    argv = [node() if which == "node" else installed(argv[0]), *argv[1:]]
    env = {"PS1": "ready$ ", "HOME": str(cwd)}
    with wrapped(argv, name="Shell", cwd=cwd, env=env, options=options) as shell:
        shell.wait_for(prompt)
        wait_registered("Shell")
        yield shell


def to_bob() -> list[str]:
    return [row["body"] for row in relay_json("history") if row["to"] == "Bob"]


@pytest.mark.parametrize("which", ["bash", "python"])
def test_a_shell_is_neither_heard_nor_typed_into(which: str, tmp_path: Path) -> None:
    with wrapped(python(ECHO), name="Bob") as bob, a_shell(which, tmp_path) as shell:
        wait_registered("Bob")
        assert UNHEARD in shell.output and "relay inbox --follow" in shell.output
        send_in_vain("Shell", f"$(touch {tmp_path}/bait)", "relay types nothing into ")
        shell.type(SHELLS[which][2].format("@relay:Bob from the shell") + "\r")
        shell.wait_for("from the shell.*from the shell")
        relay("send", "Bob", "by the verb")
        bob.wait_for("GOT Relay message .*by the verb")
        assert to_bob() == ["by the verb"]
        assert "Relay message" not in shell.output
    assert not (tmp_path / "bait").exists()


@pytest.mark.parametrize("which", ["zsh", "fish", "node"])
def test_a_shell_is_heard_where_the_person_says_so(which: str, tmp_path: Path) -> None:
    with (
        wrapped(python(ECHO), name="Bob") as bob,
        a_shell(which, tmp_path, ["--hear"]) as shell,
    ):
        wait_registered("Bob")
        assert UNHEARD not in shell.output
        for words in ("hello from a shell", "and again"):
            shell.type(SHELLS[which][2].format(f"@relay:Bob {words}") + "\r")
            bob.wait_for(f"GOT Relay message .*{words}")
        send_in_vain("Shell", "not in there", "relay types nothing into ")
        wait_until(lambda: states()[:2] == ["seen"] * 2, what="both to be seen")
        # What follows without a blank line, as node's `undefined`, is a part of the message.
        assert [body.split("\n")[0] for body in to_bob()] == ["hello from a shell", "and again"]
        assert "Relay message" not in shell.output


def test_what_waits_for_a_shell_is_read_there(tmp_path: Path) -> None:
    with a_shell("bash", tmp_path) as shell:
        relay("send", "Shell", "for the inbox")
        shell.type(f"'{sys.executable}' -m relay inbox\r")
        shell.wait_for("for the inbox")
        wait_until(lambda: outcome("for the inbox")[0] == "seen", what="it to be seen")


def test_no_question_that_a_shell_shows_is_one_of_the_persons(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("Delete everything? [y/N] ")
    with a_shell("bash", tmp_path, ["--hear"]) as shell:
        shell.type("PS1=; cat README\r")
        shell.wait_for("Delete everything")
        send_in_vain("Shell", "y", "relay types nothing into ")
        assert relay_json("items") == []
