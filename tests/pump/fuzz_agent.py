"""An agent for tests: ``fuzz_agent.py SEED SIZE KEYS RESULT`` in a raw terminal.

Writes READY and ``SIZE`` bytes that follow from the seed in chunks of any size, reads meanwhile,
and ends once it has read ``KEYS`` keys (bytes without the high bit). RESULT is what it read and
the size of its terminal, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import tty


def output(seed: int, size: int) -> bytes:
    """What the agent writes after READY."""
    return random.Random(seed).randbytes(size)


def main() -> None:
    seed, size, keys = (int(word) for word in sys.argv[1:4])
    rng = random.Random(seed + 1)
    left = memoryview(output(seed, size))
    tty.setraw(0)
    os.write(1, b"READY")
    os.set_blocking(1, False)
    got = bytearray()
    pressed = 0
    while left or pressed < keys:
        pause = rng.choice((0, 0, 0, 0.001, 0.02, 0.06))
        select.select([], [], [], pause)
        readable, writable, _ = select.select([0], [1] if left else [], [], 0.5)
        if readable and rng.random() < 0.6:
            data = os.read(0, rng.choice((1, 20, 500, 65536)))
            if not data:
                return
            got += data
            pressed += sum(byte < 0x80 for byte in data)
        if writable:
            chunk = left[: rng.choice((1, 3, 200, 5000, 60_000))]
            left = left[os.write(1, chunk) :]
    cols, rows = os.get_terminal_size(0)
    os.set_blocking(1, True)
    with open(sys.argv[4], "w") as file:
        json.dump({"got": got.hex(), "size": [cols, rows]}, file)


if __name__ == "__main__":
    main()
