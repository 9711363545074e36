"""A process beside the broker: what it prints."""

from __future__ import annotations

import asyncio
import re
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
        process = ServiceProcess(
            [sys.executable, "-c", _FLOODS],
            cwd=str(tmp_path),
            log=str(log),
            received=lambda line: None,
            ended=lambda how: None,
        )
        async with asyncio.timeout(20):
            while not log.exists():
                await asyncio.sleep(0.01)
            began = time.process_time()
            await asyncio.sleep(1.0)
            spent = time.process_time() - began
            process.kill()
            await process.gone.wait()  # though much of it is not written yet
        return spent

    assert asyncio.run(spent()) < 0.5
    assert re.search(r" [0-9]+ bytes of what it printed are left out\n", log.read_text())


_PRINTS = """
import os, socket
os.write(1, b"x" * 20_000_000)
os.write(2, b"the last words")
with socket.socket(fileno=0) as channel:
    channel.send(b"1\\n")
    channel.recv(1)
"""


async def test_what_it_prints_holds_it_up_no_longer_than_reading_takes(tmp_path: Path) -> None:
    """And all that it printed before it answers is read before its answer."""
    process: ServiceProcess

    def received(line: bytes) -> tuple[int, int]:
        return 1, process.take_printed().left_out

    began = time.monotonic()
    process = ServiceProcess(
        [sys.executable, "-c", _PRINTS],
        cwd=str(tmp_path),
        log=str(tmp_path / "log"),
        received=received,
        ended=lambda how: None,
    )
    async with asyncio.timeout(30):
        left_out: int = await process.ask(1, b"")
    took = time.monotonic() - began
    await process.close(5)
    left_out, took = (left_out, took)
    assert left_out == 20_000_014 - 16 * 1024
    assert took < 10  # at the rate at which it is logged it takes 19 s
    log = (tmp_path / "log").read_text()
    assert len(log) < 2_000_000 and " bytes of what it printed are left out\n" in log
