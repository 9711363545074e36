"""An Extracting beside a memory and a model that are a test's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from relay.broker.batch import Batch, ClientRequest, Handler
from relay.broker.directory import Directory
from relay.broker.extracting import Extracting
from relay.broker.inner import Inner
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.protocol.broker import encode, refusal
from tests.broker.support import Json
from tests.memory.embedding.server import Answer, Asked

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
    """What was asked of the memory; ``errors`` are raised first."""

    def __init__(self) -> None:
        self.saved: list[tuple[Json, str, str]] = []
        self.errors: list[RelayError] = []

    async def ask(self, request: Json, agent: str, run: str) -> Json:
        if self.errors:
            raise self.errors.pop(0)
        self.saved.append((request, agent, run))
        return {}

    def texts(self) -> list[str]:
        return [request["text"] for request, _, _ in self.saved]


class Rig:
    """An Extracting whose memory and log can be looked at."""

    def __init__(self, home: Home) -> None:
        self.memory = Memory()
        self.log: list[str] = []
        directory = Directory()
        self.parts = Extracting(
            home,
            self.memory.ask,
            directory,
            fault=self._fault,
            log=self.log.append,
            pauses=(0.0, 0.0),
        )
        self._inner = Inner(cast(Any, self), directory, self.parts.handlers())
        self.folder = Path(home.memory, "extract")

    def _fault(self) -> RelayError:
        raise AssertionError("a fault")  # with the exception in flight as its context

    def submit(self, handler: Handler, request: ClientRequest) -> None:
        connection = request.client
        batch = Batch(1000 + len(self.memory.saved))
        try:
            fields = handler(request, batch)
        except RelayError as error:
            connection.send(refusal(0, error))
            return
        if fields is not None:
            connection.send(encode({"n": 0, "ok": True, **fields}))
        for call in batch.after:
            call()

    async def extract(self, url: str, run: str = "run-1", **fields: Any) -> Json:
        llm = {"provider": "openai", "model": "m", "url": url, **fields.pop("llm", {})}
        request = {"op": "memory_extract", "text": WORDS, "llm": llm, "cwd": CWD, **fields}
        return await self._inner.ask(request, "Ada", run)

    async def settled(self) -> Json:
        """Nothing is under way any more; what is left then."""
        async with asyncio.timeout(20):
            while self.parts._tasks:
                await asyncio.wait(self.parts._tasks)
        return self.parts.stats()

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.json"))


def run(home: Home, story: Callable[[Rig], Awaitable[None]]) -> Rig:
    """Tell the story to a new Extracting, as a broker that starts has it."""

    async def told() -> Rig:
        rig = Rig(home)
        rig.parts.start()
        try:
            await story(rig)
        finally:
            await rig.parts.close()
        return rig

    return asyncio.run(told())
