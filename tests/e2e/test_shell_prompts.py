"""Messages to a shell in the middle of something: nothing is typed, so nothing of it can run."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from relay.session.prompt_watch import KEYS_PRESSED, NO_PROMPT
from tests.e2e.test_programs import SHELLS, a_shell, hostile, outcome
from tests.e2e.wrapped import Wrapped, relay
from tests.support import wait_until

#: What the person types: each leaves something open, and is taken back by Ctrl-C.
OPEN = {
    "quote": "echo 'abc\r",
    "continuation": "touch \\\r",
    "heredoc": "cat <<EOT\r",
    "read": "read answer\r",
}
#: What fish reads on in the same line, and has no here-documents.
NOT_IN_FISH = {"heredoc"}


def press_ctrl_c(shell: Wrapped, which: str) -> None:
    """Take back what is open, and wait for the prompt."""
    sign = "~\x1b" if which == "fish" else "ready$"
    prompts = shell.output.count(sign)
    shell.type("\x03")
    # fish forgets a Ctrl-C that comes while it is still at work on what was typed before.
    for _ in range(15 if which == "fish" else 0):
        with suppress(AssertionError):
            wait_until(lambda: shell.output.count(sign) > prompts, 2)
            return
        shell.type("\x03")
    wait_until(lambda: shell.output.count(sign) > prompts, 10, "the prompt")


def held(body: str) -> bool:
    """Whether the message waits, and its sender knows why."""
    state, reason = outcome(body)
    return state == "queued" and reason.startswith((NO_PROMPT[:20], KEYS_PRESSED[:20], "a command"))


@pytest.mark.parametrize("which", [shell for shell in SHELLS if shell != "dash"])
def test_nothing_is_typed_while_something_is_open(which: str, tmp_path: Path) -> None:
    bait = tmp_path / "bait"
    states = [name for name in OPEN if which != "fish" or name not in NOT_IN_FISH]
    with a_shell(which, tmp_path) as shell:
        relay("send", "Shell", "the first", "--wait=60")
        body = hostile(bait)[4]
        for state in states:
            shell.type(OPEN[state])
            relay("send", "Shell", f"{state}: {body}")
            wait_until(partial(held, f"{state}: {body}"), 10, f"held for {state}")
            assert "Relay message" not in shell.output.split("the first")[-1], state
            press_ctrl_c(shell, which)
        if which == "fish":
            shell.type("\x03\r")
        wait_until(lambda: outcome(f"{states[-1]}: {body}")[0] == "seen", 30, "the last message")
        shell.type("echo 'all''-is-well'\r")
        shell.wait_for("all-is-well")
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith(".")) == []


@pytest.mark.parametrize("which", ["bash", "fish"])
def test_nothing_is_typed_in_vi_command_mode(which: str, tmp_path: Path) -> None:
    bait = tmp_path / "bait"
    vi = "fish_vi_key_bindings" if which == "fish" else "set -o vi"
    with a_shell(which, tmp_path) as shell:
        relay("send", "Shell", "the first", "--wait=60")
        shell.type(f"touch {bait}\r")
        wait_until(bait.exists, 20, "the command of the person's")
        bait.unlink()
        shell.type(f"{vi}\r")
        shell.type("\x1b")
        relay("send", "Shell", "kkGjnNv.@a*#=u")
        wait_until(lambda: held("kkGjnNv.@a*#=u"), 10, "held in vi's command mode")
        assert not bait.exists()
        shell.type("ia")  # so that fish, too, shows what Ctrl-C does
        shell.type("\x03")
        wait_until(lambda: outcome("kkGjnNv.@a*#=u")[0] == "seen", 30, "the message")
        assert not bait.exists()


#: A pager: shows a page, and ends with the first key.
PAGER = """
import sys, termios, tty
modes = termios.tcgetattr(0)
tty.setraw(0)
print("the" + " page", end="", flush=True)
sys.stdin.read(1)
print("\\r", flush=True)
termios.tcsetattr(0, termios.TCSADRAIN, modes)
"""


def test_the_key_that_ends_a_pager_keeps_no_message_from_the_shell(tmp_path: Path) -> None:
    (tmp_path / "pager.py").write_text(PAGER)
    with a_shell("bash", tmp_path) as shell:
        relay("send", "Shell", "the first", "--wait=60")
        shell.type(f"'{sys.executable}' pager.py\r")
        shell.wait_for("the page")
        relay("send", "Shell", "while you read")
        wait_until(lambda: outcome("while you read")[1], 10, "held")
        shell.type("q")
        wait_until(lambda: outcome("while you read")[0] == "seen", 20, "the message")
