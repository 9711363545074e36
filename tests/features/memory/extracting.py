"""An Extractor beside a memory and a model that are a test's own."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.features.memory.extraction import Extractor
from relay.features.memory.requests import Json, MemoryRequest
from tests.features.memory.embedding.server import Answer, Asked

KEY = "sk-sesame-0123456789"
CWD = "/src/shop"
WORDS = "The tests need Redis.\nDeploys go through make release."
FACTS = ["The tests need Redis", "Deploys go through make release"]

HANGS = Answer(b"never told", hang=0)

Reply = Callable[[Asked], Answer]


def saying(facts: object) -> Answer:
    text = facts if isinstance(facts, str) else json.dumps(facts)
    return Answer({"choices": [{"message": {"content": text}}]})


def always(facts: object) -> Reply:
    return lambda _: saying(facts)


def in_turn(*answers: Answer) -> Reply:
    """Each once, the last for ever."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


class Memory:
    """What was asked of the memory; ``errors`` are raised first. ``hangs``: it never answers."""

    def __init__(self) -> None:
        self.saved: list[tuple[Json, str, str]] = []
        self.errors: list[RelayError] = []
        self.asked = threading.Event()
        self.hangs = False

    def ask(self, request: Json, agent: str, run: str) -> Json:
        self.asked.set()
        if self.hangs:
            threading.Event().wait()
        if self.errors:
            raise self.errors.pop(0)
        self.saved.append((request, agent, run))
        return {}

    def texts(self) -> list[str]:
        return [request["text"] for request, _, _ in self.saved]


class Rig:
    """An Extractor as a service that starts has it, whose memory can be looked at."""

    def __init__(self, home: Home) -> None:
        self.memory = Memory()
        self.extractor = Extractor(home, self.memory.ask, pauses=(0.0, 0.0))
        self.extractor.start()
        self.folder = Path(home.memory, "extract")

    def extract(self, url: str, run: str = "run-1", **fields: Any) -> Json:
        llm = {"provider": "openai", "model": "m", "url": url, **fields.pop("llm", {})}
        request = {"op": "memory_extract", "text": WORDS, "llm": llm, **fields}
        return dict(self.extractor.take(MemoryRequest(request, "Ada", run, 1000, CWD)).result(20))

    def settled(self) -> Json:
        """Nothing is under way any more; what is left then."""
        assert self.extractor.settled(20)
        return dict(self.extractor.stats())

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.json"))


@contextmanager
def running(home: Home) -> Iterator[Rig]:
    """A new Extractor, which ends with the block."""
    rig = Rig(home)
    try:
        yield rig
    finally:
        rig.extractor.close()
