"""What leaves the session at its end with ``auto_save``, and what happens when it cannot."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.errors import BrokerUnavailable, RelayError
from relay.features.memory.session import KEPT_MAX, TAIL_MAX, LastWords, tail

OPENAI = {"provider": "openai", "model": "m", "url": "http://127.0.0.1:9"}
TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" * 2


class Rig:
    def __init__(
        self,
        config: dict[str, Any] = OPENAI,
        environ: dict[str, str] | None = None,
        project: str | None = "/src/shop",
        error: RelayError | None = None,
    ) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.notes: list[str] = []
        self._error = error
        self.words = LastWords(config, environ or {}, self, self.notes.append, project=project)

    async def request(self, op: str, *_: Any, **fields: Any) -> Any:
        self.asked.append((op, fields))
        if self._error is not None:
            raise self._error
        return {}

    def end(self) -> str:
        """The text that was handed over; empty for none."""
        asyncio.run(self.words.end())
        return str(self.asked[-1][1]["text"]) if self.asked else ""


def test_one_request_hands_over_the_words_the_model_and_where_they_belong() -> None:
    rig = Rig({**OPENAI, "api_key_env": "MINE"}, {"MINE": "sesame"})
    rig.words.said(["one", "two"])
    rig.words.said(["three"])
    assert rig.end() == "one\ntwo\nthree"
    ((op, fields),) = rig.asked
    assert op == "memory_extract" and fields["deadline"] <= 10
    assert fields["llm"] == {
        "provider": "openai",
        "model": "m",
        "url": "http://127.0.0.1:9/v1/chat/completions",
        "api_key": "sesame",
    }
    assert "cwd" not in fields and rig.notes == []


def test_no_secret_leaves_the_session_and_no_control() -> None:
    rig = Rig()
    rig.words.said([f"export GITHUB_TOKEN={TOKEN}", "\x1b[31mred\x1b[0m", "half \ud800"])
    text = rig.end()
    assert TOKEN[4:] not in text and "GITHUB_TOKEN" in text
    assert "\x1b" not in text and "\ud800" not in text


@pytest.mark.parametrize("size", [10, 1000, 3 * KEPT_MAX])
def test_only_the_end_is_kept_and_sent(size: int) -> None:
    rig = Rig()
    rig.words.said(["before", TOKEN])
    for number in range(3 * KEPT_MAX // size + 2):
        rig.words.said([f"{number} " + "x" * size])
        assert rig.words._size <= 2 * KEPT_MAX + size
    rig.words.said(["the last line"])
    text = rig.end()
    assert text.endswith("the last line") and "before" not in text
    assert len(text.encode()) <= TAIL_MAX


def test_a_secret_at_the_beginning_of_what_is_sent_is_masked() -> None:
    rig = Rig()
    filler = "and so on " * (TAIL_MAX // 10 - 3) + "."
    rig.words.said(["first " + TOKEN, filler])
    text = rig.end()
    assert text.endswith(filler) and TOKEN[-20:] not in text


def test_an_agent_that_said_nothing_asks_nothing() -> None:
    rig = Rig()
    rig.words.said(["", "  "])
    assert rig.end() == "" and rig.notes == []


def test_a_variable_that_is_not_set_is_noted_at_once() -> None:
    rig = Rig({**OPENAI, "api_key_env": "ABSENT"})
    assert len(rig.notes) == 1 and "ABSENT is not set" in rig.notes[0]
    rig.words.said(["one"])
    assert rig.end() == ""


def test_a_broker_that_is_away_is_asked_once(capsys: pytest.CaptureFixture[str]) -> None:
    rig = Rig(error=BrokerUnavailable("the broker could not be reached in time", hint="look"))
    rig.words.said(["one"])
    rig.end()
    assert len(rig.asked) == 1
    assert rig.notes == [
        "auto_save: nothing is kept of this session: the broker could not be reached in time (look)"
    ]
    assert capsys.readouterr().err == f"{rig.notes[0]}\n"


def test_a_folder_that_cannot_be_named_has_no_project() -> None:
    rig = Rig(project=None)
    rig.words.said(["one"])
    assert rig.end() == "" and "not Unicode" in rig.notes[0]


@given(st.text(), st.integers(1, 50))
def test_a_tail_is_the_end(text: str, limit: int) -> None:
    kept = tail(text, limit)
    assert len(kept.encode()) <= limit
    assert text.encode(errors="replace").endswith(kept.encode())
