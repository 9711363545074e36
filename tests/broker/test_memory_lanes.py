"""Which lanes are open together, which give way, and who waits for whom."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from relay.broker.batch import ClientRequest
from relay.broker.memory_lanes import LANES_MAX, Job, Lane, Lanes
from relay.config.memory_spec import StoreSpec, parse_store
from relay.core.errors import RelayError
from tests.broker.support import Json

SERVER = "http://127.0.0.1:6333"


class Clerk:
    """Answers when its gate is open; ``seen`` is what all of them do, in order."""

    def __init__(self, name: str, seen: list[str], gate: threading.Event) -> None:
        self.name = name
        self.seen = seen
        self.gate = gate
        seen.append(f"open {name}")

    def answer(self, request: Json, agent: str | None, run: str | None, now_ms: int) -> Json:
        assert self.gate.wait(30)
        self.seen.append(f"{self.name}: {request['text']}")
        return {}

    def caught_up(self, now_ms: int) -> bool:
        return True

    def close(self) -> None:
        self.seen.append(f"close {self.name}")

    def kill(self) -> None:
        self.gate.set()


class Rig:
    """Lanes whose clerks are named after what is special in their store."""

    def __init__(self, before_max: float = 30.0) -> None:
        self.before_max = before_max
        self.seen: list[str] = []
        self.lines: list[bytes] = []
        self.gates: dict[str, threading.Event] = {}
        self.made = 0
        self.lanes = Lanes(self._lane)

    def _lane(self, spec: StoreSpec | None, before: list[Lane]) -> Lane:
        self.made += 1
        name = f"{self.made}"
        gate = self.gates[name] = threading.Event()
        gate.set()
        return Lane(
            spec,
            lambda: Clerk(name, self.seen, gate),
            before=before,
            done=self._done,
            on_end=self.lanes.ended,
            fault=lambda: RelayError("a fault"),
            log=self.lines.append,  # type: ignore[arg-type]
            before_max=self.before_max,
        )

    def _done(self, job: Job, line: bytes) -> None:
        assert job.lane is not None
        job.lane.pending -= 1
        self.lines.append(line)

    def put(self, spec: StoreSpec | None, text: str) -> Lane:
        caller: Any = None
        job = Job(ClientRequest(caller, 1, "memory_save", {"text": text}, 0), spec, 5)
        job.lane = lane = self.lanes.lane(spec)
        lane.pending += 1
        lane.put(job)
        return lane

    async def answered(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.lines) < count:
                await asyncio.sleep(0.005)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def qdrant(collection: str, **more: object) -> StoreSpec:
    return parse_store("qdrant", {"url": SERVER, "collection": collection, **more})


def test_one_store_has_one_lane_and_the_default_one_its_own() -> None:
    async def scenario() -> None:
        rig = Rig()
        assert rig.put(None, "a") is rig.put(None, "b")
        assert rig.put(qdrant("x"), "c") is rig.put(qdrant("x"), "d")
        await rig.answered(4)
        assert await rig.lanes.close(20, 1)
        assert rig.seen.count("open 1") == rig.seen.count("close 2") == 1

    run(scenario())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (qdrant("x", api_key="old"), qdrant("x", api_key="new")),
        (parse_store("mem0"), parse_store("mem0", {"telemetry": True})),
        (
            parse_store("mem0"),
            parse_store("mem0", {"vector_store": {"provider": "qdrant", "path": "/x"}}),
        ),
        (
            StoreSpec("custom", {}, "/x/relay.config.py", "1"),
            StoreSpec("custom", {}, "/x/relay.config.py", "2"),
        ),
    ],
)
def test_what_cannot_be_open_together_is_opened_one_after_the_other(
    one: StoreSpec, other: StoreSpec
) -> None:
    async def scenario() -> None:
        rig = Rig()
        first = rig.put(one, "a")
        rig.gates["1"].clear()
        rig.put(one, "b")
        rig.put(other, "c")
        assert not first.ended.is_set()
        rig.gates["1"].set()
        await rig.answered(3)
        # What was asked first is done first, and the first is closed before the second opens.
        assert rig.seen == ["open 1", "1: a", "1: b", "close 1", "open 2", "2: c"]
        rig.put(one, "d")
        await rig.answered(4)
        assert await rig.lanes.close(20, 1)
        assert rig.seen[6:] == ["close 2", "open 3", "3: d", "close 3"]

    run(scenario())


def test_the_least_recently_used_idle_one_gives_way() -> None:
    async def scenario() -> None:
        rig = Rig()
        rig.put(None, "default")
        specs = [qdrant(f"c{number}") for number in range(LANES_MAX + 1)]
        for spec in specs[:-1]:
            rig.put(spec, "x")
        await rig.answered(1 + LANES_MAX)
        rig.put(specs[0], "again")  # so that the second is the oldest
        await rig.answered(2 + LANES_MAX)
        rig.put(specs[-1], "new")
        await rig.answered(3 + LANES_MAX)
        assert rig.seen[-3:-1] == ["close 3", f"open {LANES_MAX + 2}"]
        assert await rig.lanes.close(20, 1)

    run(scenario())


def test_those_that_wait_for_one_another_are_bounded() -> None:
    async def scenario() -> None:
        rig = Rig()
        specs = [qdrant("x", api_key=str(number)) for number in range(2)]
        rig.put(specs[0], "0")
        rig.gates["1"].clear()
        rig.put(specs[0], "1")
        with pytest.raises(RelayError) as busy:
            for number in range(2, 100):
                rig.put(specs[number % 2], str(number))
        assert busy.value.code == "busy" and rig.made <= LANES_MAX + 1
        rig.put(None, "the default one has room")
        rig.gates["1"].set()
        assert await rig.lanes.close(20, 1)
        done = [line.split(": ")[1] for line in rig.seen if ": " in line]
        numbers = [int(text) for text in done if text.isdigit()]
        assert numbers == list(range(len(numbers))) and len(numbers) > 2

    run(scenario())


def test_what_is_not_done_in_time_is_killed() -> None:
    async def scenario() -> None:
        rig = Rig()
        rig.put(qdrant("x"), "a")
        await rig.answered(1)
        rig.gates["1"].clear()
        rig.put(qdrant("x"), "b")
        rig.put(qdrant("x"), "c")
        assert not await rig.lanes.close(0.1, 20)
        assert rig.seen[-1] == "close 1" and b"the broker stops" in rig.lines[-1]

    run(scenario())


def test_who_waits_for_one_that_hangs_is_told_and_goes_on_when_it_has_ended() -> None:
    async def scenario() -> None:
        rig = Rig(before_max=0.05)
        rig.put(qdrant("x", api_key="old"), "a")
        await rig.answered(1)
        rig.gates["1"].clear()
        hanging = rig.put(qdrant("x", api_key="old"), "hangs")
        rig.put(qdrant("x", api_key="new"), "b")
        rig.put(qdrant("x", api_key="new"), "c")
        await rig.answered(3)
        assert all(b'"code":"busy"' in line for line in rig.lines[1:])
        assert rig.seen == ["open 1", "1: a"]  # nothing of it was done, nor the store opened twice
        rig.gates["1"].set()
        assert await asyncio.to_thread(hanging.ended.wait, 20)
        rig.put(qdrant("x", api_key="new"), "d")
        await rig.answered(5)
        assert rig.seen[-2:] == ["open 2", "2: d"]
        assert await rig.lanes.close(20, 1)

    run(scenario())


def test_an_error_that_names_what_is_no_unicode_is_an_answer_and_ends_no_lane() -> None:
    class Damaged(Clerk):
        def answer(self, request: Json, agent: str | None, run: str | None, now_ms: int) -> Json:
            raise RelayError("/home/\udcff/memory.db is damaged", details={"path": "/\udcff"})

    async def scenario() -> None:
        rig = Rig()
        gate = threading.Event()
        lane = Lane(
            None,
            lambda: Damaged("1", rig.seen, gate),
            before=[],
            done=rig._done,
            on_end=lambda lane: None,
            fault=lambda: RelayError("a fault"),
            log=lambda text: None,
        )
        caller: Any = None
        for _ in range(2):
            job = Job(ClientRequest(caller, 1, "memory_list", {}, 0), None, 5)
            job.lane = lane
            lane.put(job)
        await rig.answered(2)
        assert all("/home/?/memory.db is damaged" in line.decode() for line in rig.lines)
        lane.close()
        assert await asyncio.to_thread(lane.ended.wait, 20)

    run(scenario())
