"""The two agents of the demo: ordinary line programs that know nothing of relay.

They print lines and read lines. What makes them talk is that relay hears ``@relay:`` at the start
of a line and types what it carries into the other one's terminal.
"""

from __future__ import annotations

import re
import sys

# "Relay message [7Q4B2K9D_3VX8AM] from agent Ann: the text (End of …)."
_MESSAGE = re.compile(r"Relay message \[\w+\] from agent (\w+)[^:]*: (.*)")
_PRODUCT = re.compile(r"what is (\d+) times (\d+)")


def asker(other: str, left: int, right: int) -> int:
    """Ask the other agent for a product and check the answer; 0 when it is right."""
    print("I have numbers to multiply, and somebody better at it next door.", flush=True)
    print(f"@relay:{other} what is {left} times {right}?", flush=True)
    print(flush=True)
    for line in sys.stdin:
        received = _MESSAGE.search(line)
        if received is None:
            continue
        right_answer = str(left * right) in received[2].split(" (")[0]
        print("That is right." if right_answer else "That is wrong.", flush=True)
        print(f"@relay:{other} thank you, bye", flush=True)
        print(flush=True)
        return 0 if right_answer else 1
    return 1


def answerer() -> int:
    """Answer questions about products until somebody says bye."""
    print("Ready to multiply.", flush=True)
    for line in sys.stdin:
        received = _MESSAGE.search(line)
        if received is None:
            continue
        if "bye" in received[2]:
            print("Nice to be of use.", flush=True)
            return 0
        if product := _PRODUCT.search(received[2]):
            left, right = int(product[1]), int(product[2])
            print(f"@relay:{received[1]} {left} times {right} is {left * right}", flush=True)
            print(flush=True)
    return 1


if __name__ == "__main__":
    if sys.argv[1] == "asker":
        sys.exit(asker(sys.argv[2], 6, 7))
    sys.exit(answerer())
