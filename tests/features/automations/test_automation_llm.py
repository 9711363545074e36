"""``ctx.llm``: asks the model that is configured, a server or a program, and reads its answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.core.errors import ConfigError, RelayError, UsageError
from relay.core.paths import Home
from relay.features.automations.automation_context import CALLS_MAX, LanguageModel, NoAnswer
from relay.features.automations.settings import parse_llm
from tests.features.memory.embedding.server import Answer, EmbeddingServer

Json = dict[str, Any]


def model(settings: Json | None, tmp_path: Path, seconds: float = 20.0) -> LanguageModel:
    home = Home(str(tmp_path / "home"))
    home.create()
    checked = None if settings is None else parse_llm(settings)
    return LanguageModel(checked, home, time.monotonic() + seconds)


def program(script: str, **more: Any) -> Json:
    return {"command": ["sh", "-c", script], "tools": False, **more}


def saying(*answers: str) -> Callable[[object], Answer]:
    left = list(answers)
    return lambda _: Answer({"choices": [{"message": {"content": left.pop(0)}}]})


def test_without_a_model_it_says_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no language model is configured") as raised:
        model(None, tmp_path)("what?")
    assert 'config = {"llm": {"provider"' in raised.value.hint


@pytest.mark.parametrize(
    ("answers", "value"),
    [
        pytest.param(['{"x": 1}'], {"x": 1}, id="json"),
        pytest.param(['<think>[hm]</think>\n```json\n{"x": 1}\n```'], {"x": 1}, id="fence"),
        pytest.param(["Sure! {}", '{"x": 1}'], {"x": 1}, id="second"),
    ],
)
def test_json_is_read_and_a_model_that_chats_is_asked_again(
    tmp_path: Path, answers: list[str], value: object
) -> None:
    with EmbeddingServer(saying(*answers)) as server:
        llm = model({"provider": "openai", "model": "m", "url": server.url}, tmp_path)
        assert llm("Is it a code?", json=True) == value
    assert llm.calls == len(server.asked) == len(answers)
    told, asked = server.asked[-1].body["messages"]
    assert "one JSON value" in told["content"]
    assert asked["content"].startswith("Is it a code?")
    assert ("Sure! {}" in asked["content"]) is (len(answers) == 2)


def test_what_is_no_json_twice_is_an_error_and_so_is_a_server_that_is_away(tmp_path: Path) -> None:
    with EmbeddingServer(saying("no", "No!", "words")) as server:
        settings = {"provider": "other", "model": "m", "url": server.url}
        llm = model(settings, tmp_path)
        with pytest.raises(NoAnswer, match="answered no JSON, twice: No!"):
            llm("?", json=True)
        assert llm("?") == "words"
    with pytest.raises(RelayError, match="cannot be reached"):
        llm("?")


def test_a_program_answers_without_a_tool(tmp_path: Path) -> None:
    script = program('cat; echo " ${RELAY_AGENT} $MINE"', env={"MINE": "own"})
    answer = model(script, tmp_path)("Say A.")
    assert answer.startswith("You answer the questions of a program.")
    assert answer.endswith("\nSay A. llm own")
    with pytest.raises(NoAnswer, match="sh did not answer: sh has no hooks by which this turn"):
        model({"command": ["sh", "-c", "cat"]}, tmp_path)("?")
    with pytest.raises(NoAnswer, match=r"sh did not answer: no end of the turn within [\d.]+ s"):
        model(program("sleep 60"), tmp_path, seconds=1.5)("?")


def test_a_run_asks_only_so_often(tmp_path: Path) -> None:
    llm = model(program("cat"), tmp_path)
    llm.calls = CALLS_MAX
    with pytest.raises(UsageError, match=f"may ask the model {CALLS_MAX} times"):
        llm("?")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        pytest.param("gpt", "llm must be a dictionary", id="text"),
        pytest.param({"provider": "nobody", "model": "m"}, "llm: without a url", id="provider"),
        pytest.param({"provider": "openai"}, "llm needs the name of a model", id="model"),
        pytest.param(
            {"provider": "openai", "model": "m", "api_key": "sk-1"}, "key 'api_key'", id="key"
        ),
        pytest.param({"command": "a", "mode": "interactive"}, "is headless", id="mode"),
        pytest.param({"command": ""}, "llm: the command must be a string", id="command"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(given: object, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_llm(given)
