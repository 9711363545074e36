"""Hot workers of the pool; limited ones are seen in tests/features/automations."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import pytest

from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.features.personas.workers import WorkerKind, WorkerPool
from tests.broker.support import LineLog


def test_a_hot_worker_that_has_ended_refuses_what_it_is_asked_and_the_next_one_answers(
    home: Home,
) -> None:
    """A question may reach a worker after its end: whoever asked must not wait for ever."""
    echo = (
        "import json, os, socket\n"
        "channel = socket.socket(fileno=0)\n"
        "channel.sendall(b'{\"ready\": {}}\\n')\n"
        "for line in channel.makefile('rb'):\n"
        "    asked = json.loads(line)\n"
        "    if asked['do'] == 'die': os._exit(3)\n"
        "    said = json.dumps({'id': asked['id'], 'said': asked['do']})\n"
        "    channel.sendall(said.encode() + b'\\n')"
    )
    home.create()
    command = (sys.executable, "-c", echo)
    kind = WorkerKind("k", "a test", command, home.root, "test.log", idle=60.0)

    async def use() -> None:
        log = LineLog()
        pool = WorkerPool(home, log)
        first = pool.get(kind)
        assert pool.get(kind) is first
        assert (await first.ask({"do": "one"}))["said"] == "one"
        for _ in range(2):
            with pytest.raises(RelayError, match="its worker ended with status 3") as raised:
                await first.ask({"do": "die"})
            assert raised.value.code == "worker_ended"
        assert log.lines == ["the worker of a test ended with status 3: see test.log"]
        second = pool.get(kind)
        assert (await second.ask({"do": "two"}))["said"] == "two"
        other = pool.get(replace(kind, idle=30.0))  # another kind takes its place
        assert second.leaving and pool.running("k") == [other]
        await pool.close()

    asyncio.run(use())
