"""What a program said last becomes a memory that the next one finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.test_handlers import project
from tests.e2e.wrapped import python, relay, relay_json, wrapped
from tests.features.memory.embedding.server import Answer, Asked, EmbeddingServer
from tests.support import wait_until

SAYS = "print('I found out that the staging database is called heron.')\nprint('Bye.')"
HEARS = """
import sys
print('@memory:list', flush=True)
for line in sys.stdin:
    print('GOT', line.strip(), flush=True)
"""
FACT = "The staging database is called heron"


def config(url: str) -> str:
    llm = {"provider": "openai", "model": "small", "url": url, "apiKeyEnv": "THE_KEY"}
    return f"config = {{'memory': {{'autoSave': True, 'config': {{'llm': {llm}}}}}}}\n"


def finds(asked: Asked) -> Answer:
    """A model that reads: it finds the fact only where it was said."""
    conversation = asked.body["messages"][1]["content"]
    facts = [FACT] if "called heron" in conversation else []
    return Answer({"choices": [{"message": {"content": json.dumps(facts)}}]})


def test_last_words_become_a_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "sesame")
    with EmbeddingServer(finds) as server:
        folder = project(tmp_path, config(server.url))
        monkeypatch.chdir(folder)
        with wrapped(python(SAYS), name="Ada", cwd=folder) as ada:
            assert ada.wait() == 0
        (row,) = wait_until(lambda: relay_json("memory", "list"), 60, "the fact to be saved")
        (asked,) = server.asked
    assert asked.headers["authorization"] == "Bearer sesame"
    assert (row["text"], row["agent"], row["scope"]) == (FACT, "Ada", "project")
    assert row["meta"] == {"auto": True, "relay_origin": str(folder)}
    with wrapped(python(HEARS), name="Bob", cwd=folder) as bob:
        bob.wait_for(f'\\(project\\) "{FACT}"')


def test_a_model_that_is_away_costs_the_agent_nothing_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "sesame")
    with EmbeddingServer(lambda _: Answer({"error": "no such model"}, 404)) as server:
        folder = project(tmp_path, config(server.url))
        monkeypatch.chdir(folder)
        with wrapped(python(SAYS), name="Ada", cwd=folder) as ada:
            assert ada.wait() == 0
        wait_until(lambda: server.asked, 60, "the model to be asked")

    def failed() -> bool:
        return bool(relay_json("memory", "stats")["extractions"]["failed"])

    wait_until(failed, 60, "the failure to be told")
    told = relay("memory", "stats")
    assert "answered 404: no such model" in told
    assert "sesame" not in told
