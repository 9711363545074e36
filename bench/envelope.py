"""Measure what a message costs its receiver beside its words, in tokens.

    python -m bench.envelope

Prints, for each kind of message, the tokens around a body of five words: for an agent that has
relay's primer, and for one that does not. Then the primer, which is paid once a conversation. The
six agents get the same envelope; they differ in how they take the primer.

Tokens are those of o200k_base where the package ``bpe-openai`` is installed (it brings the table
along). Without it they are estimated: one for each word or part of a word of four characters, and
one for each sign. The models of the six count differently, by a few in a hundred.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # as a script too
from relay.agents.launch import Primer  # noqa: E402
from relay.core.message import REPORTED, Message  # noqa: E402
from relay.directive.envelope import envelope  # noqa: E402

BODY = "please run the tests now"
PEER = Message("01KAM3T4Q8ZV7X2N5BWP9RCDEF", "Alice", "Bob", BODY, 0, nonce="7K2QXD")
KINDS: dict[str, dict[str, Any]] = {
    "from an agent": {},
    "in a thread": {"thread": "t1"},
    "to a channel": {"attributes": {"channel": "#eng"}},
    "whose answer is awaited": {"attributes": REPORTED},
    "from the person": {"sender_kind": "person", "sender": "ann", "proven": True},
    "notice of relay's": {"sender_kind": "relay", "sender": "relay"},
}


def main() -> int:
    count, how = _counter()
    words = count(BODY)
    print(f"tokens ({how}) around a message of {words}")
    print(f"{'':26}{'with a primer':>14}{'without':>9}")
    for kind, fields in KINDS.items():
        bare = replace(PEER, **fields)
        costs = [
            count(envelope(one, style="paste").text) - words
            for one in (replace(bare, primed=True), bare)
        ]
        print(f"{kind:26}{costs[0]:14}{costs[1]:9}")
    print(f"the primer: {count(Primer('Bob').text())}, once")
    return 0


def _counter() -> tuple[Any, str]:
    try:
        bpe_openai = import_module("bpe_openai")
    except ImportError:
        return _estimated, "estimated"
    encoding = bpe_openai.get_encoding("o200k_base")
    return lambda text: len(encoding.encode(text)), "o200k_base"


def _estimated(text: str) -> int:
    return sum(-(-len(part) // 4) for part in re.findall(r"\w+|[^\w\s]", text))


if __name__ == "__main__":
    sys.exit(main())
