"""A process beside the broker: what it prints."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from relay.broker.service_process import ServiceProcess

#: Takes long to be masked: something that may be a token begins in every fourth place.
_FLOODS = """while True: print("'sk-" * 4000)"""


def test_a_flood_that_takes_long_to_be_masked_leaves_the_broker_its_time(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def spent() -> float:
        """Seconds of the processor within a second of the flood."""
        ended = asyncio.Event()
        process = ServiceProcess(
            [sys.executable, "-c", _FLOODS],
            cwd=str(tmp_path),
            log=str(log),
            received=lambda line: None,
            ended=lambda how: ended.set(),
        )
        async with asyncio.timeout(20):
            while not log.exists():
                await asyncio.sleep(0.01)
            began = time.process_time()
            await asyncio.sleep(1.0)
            spent = time.process_time() - began
            process.kill()
            await ended.wait()  # though much of it is not written yet
        return spent

    assert asyncio.run(spent()) < 0.2
    assert log.read_text().endswith(" what else it printed is left out\n")
