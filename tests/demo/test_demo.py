"""The demo: its two agents as plain programs, and the whole play."""

from __future__ import annotations

import io
import sys

import pytest

from relay.demo import agents
from tests.e2e.wrapped import relay

HEAD = "Relay message [ABCD1234] from agent"


def lines(monkeypatch: pytest.MonkeyPatch, *read: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(read) + "\n"))


def test_the_answerer_multiplies_and_says_bye(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines(monkeypatch, "noise", f"{HEAD} Ann: what is 6 times 7? (To answer …)", f"{HEAD} Ann: bye")
    assert agents.answerer() == 0
    assert "@relay:Ann 6 times 7 is 42\n\n" in capsys.readouterr().out


@pytest.mark.parametrize(("answer", "status"), [("6 times 7 is 42", 0), ("6 times 7 is 41", 1)])
def test_the_asker_checks_the_answer(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    status: int,
) -> None:
    lines(monkeypatch, f"{HEAD} Ben: {answer} (To answer, if needed: …).")
    assert agents.asker("Ben", 6, 7) == status
    assert "@relay:Ben what is 6 times 7?\n\n" in capsys.readouterr().out


def test_the_whole_play_ends_with_every_message_seen() -> None:
    shown = relay("demo")
    assert "All 3 messages were seen." in shown
    assert "relay wrap --name Alice -- claude" in shown
