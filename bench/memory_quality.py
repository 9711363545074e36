"""What a search finds: LoCoMo's questions, and probes of our own that use other words.

LoCoMo (Maharana et al., 2024) is under CC BY-NC and no part of relay; its file is given by whoever
has it. A question counts when its evidence is in its conversation; each conversation is a place of
its own. The texts are those of the paper: ``Ann said, "…"``.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from relay.features.memory.embedding import Embedder
from relay.features.memory.local.local_store import LocalStore
from relay.features.memory.records import Memory, Place, Scope

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open", 4: "single", 5: "adversarial"}
PROBES = Path(__file__).with_name("memory_probes.jsonl")
PLACE = Place(Scope.PROJECT, "/bench")
_DEPTH = 10
_EVIDENCE = re.compile(r"D(\d+):(\d+)")
_NOW = 1_795_000_000_000


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the ids of what answers it, and the category by which it is counted."""

    text: str
    evidence: frozenset[str]
    category: str


@dataclass(frozen=True, slots=True)
class Corpus:
    """Memories that are searched together, and what is asked of them."""

    memories: tuple[Memory, ...]
    questions: tuple[Question, ...]


#: The ids of what is found for a question, the best first.
Search = Callable[[str], Sequence[str]]
#: A system that has taken in a corpus.
Make = Callable[[Corpus], AbstractContextManager[Search]]


def locomo(path: str) -> Iterator[Corpus]:
    """The conversations of LoCoMo's file."""
    for sample in json.loads(Path(path).read_text(encoding="utf-8")):
        memories = tuple(_turns(sample["conversation"]))
        known = {memory.id for memory in memories}
        questions = []
        for asked in sample["qa"]:
            evidence = frozenset(_ids(asked.get("evidence") or ())) & known
            if evidence:
                category = CATEGORIES.get(asked.get("category"), "other")
                questions.append(Question(asked["question"], evidence, category))
        yield Corpus(memories, tuple(questions))


def probes() -> Iterator[Corpus]:
    """Our own: what a developer tells an agent, and two questions each in other words."""
    lines = [json.loads(line) for line in PROBES.read_text(encoding="utf-8").splitlines()]
    memories, questions = [], []
    for number, line in enumerate(lines):
        id_ = f"probe-{number:03}"
        memories.append(Memory(id_, line["text"], PLACE, None, None, _NOW, _NOW))
        questions += [Question(text, frozenset({id_}), "probes") for text in line["queries"]]
    yield Corpus(tuple(memories), tuple(questions))


def _turns(conversation: Mapping[str, Any]) -> Iterator[Memory]:
    for name, turns in conversation.items():
        session = re.fullmatch(r"session_(\d+)", name)
        if session is None:
            continue
        when = conversation.get(f"{name}_date_time", "")
        for turn in turns:
            text = f'{turn["speaker"]} said, "{turn["text"]}"'
            if caption := turn.get("blip_caption"):
                text += f" and shared {caption}."
            (id_,) = _ids([turn["dia_id"]])
            yield Memory(id_, text.strip(), PLACE, None, name, _ms(when), _ms(when))


def _ids(evidence: Sequence[str]) -> list[str]:
    """``["D1:3; D2:04"]`` as the ids d1-3 and d2-4."""
    return [
        f"d{int(session)}-{int(turn)}"
        for one in evidence
        for session, turn in _EVIDENCE.findall(one)
    ]


def _ms(when: str) -> int:
    """ "1:56 pm on 8 May, 2023" in milliseconds since the epoch; 0 for anything else."""
    try:
        date = datetime.strptime(when, "%I:%M %p on %d %B, %Y")
    except ValueError:
        return 0
    return int(date.replace(tzinfo=UTC).timestamp() * 1000)


def measure(corpora: Iterator[Corpus], make: Make) -> dict[str, dict[str, float]]:
    """Figures by category and for ``all``, from 0 to 1: see ``figures``."""
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for corpus in corpora:
        with make(corpus) as search:
            for question in corpus.questions:
                one = figures(list(search(question.text)), question.evidence)
                found.setdefault(question.category, []).append(one)
                found.setdefault("all", []).append(one)
    names = ("recall@5", "recall@10", "mrr", "hit@5")
    return {
        category: {
            "questions": float(len(rows)),
            **{name: sum(row[n] for row in rows) / len(rows) for n, name in enumerate(names)},
        }
        for category, rows in found.items()
    }


def figures(ids: list[str], evidence: frozenset[str]) -> tuple[float, float, float, float]:
    """(recall@5, recall@10, 1 / rank of the first that is right or 0, hit@5) of one question."""
    at = [rank for rank, id_ in enumerate(ids, start=1) if id_ in evidence]
    within = [sum(1 for rank in at if rank <= depth) for depth in (5, 10)]
    first = 1 / at[0] if at else 0.0
    return within[0] / len(evidence), within[1] / len(evidence), first, float(within[0] > 0)


def local(embedder: Embedder | None) -> Make:
    """Relay's own store, in a folder of its own for each corpus."""

    @contextmanager
    def make(corpus: Corpus) -> Iterator[Search]:
        meaning = None
        if embedder is not None:
            from relay.features.memory.local.vectors import VectorMeaning  # it imports numpy

            meaning = VectorMeaning(_Shared(embedder))
        with (
            tempfile.TemporaryDirectory(prefix="relay-bench-") as folder,
            closing(LocalStore(folder, meaning)) as store,
        ):
            store.restore(corpus.memories)
            store.catch_up(len(corpus.memories))
            yield lambda query: [hit.memory.id for hit in store.search(query, [PLACE], _DEPTH)]

    return make


class _Shared:
    """An embedder that several stores use one after the other: none of them closes it."""

    def __init__(self, embedder: Embedder) -> None:
        self.name, self.dims, self.embed = embedder.name, embedder.dims, embedder.embed

    def close(self) -> None:
        """Nothing: it is closed by whoever made it."""
