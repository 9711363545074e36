"""Counts the tokens of a run by the model, each answer once. Pure.

A file of its own: it is part of the checkpoint of every agent's source.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from relay.core.bounded import RecentSet

#: Models whose tokens are counted in one run, and tokens of one answer: more is no true number.
MODELS_MAX, TOKENS_MAX = 20, 10_000_000
#: Answers that are remembered as counted.
ANSWERS_MAX = 256
#: Tokens of an answer, as the agent's records have them: what the model was told beside what it had
#: cached, what it has said, what it had cached, and what it has cached for later.
Tokens = tuple[object, ...]


@dataclass(slots=True)
class TokenCounts:
    """What a run has used so far."""

    #: Four numbers, as Tokens has them, by the model.
    by_model: dict[str, list[int]] = field(default_factory=dict)
    counted: RecentSet[str] = field(default_factory=lambda: RecentSet(ANSWERS_MAX))

    def add(self, answer: str, model: str, tokens: Tokens) -> None:
        """Count the tokens of one answer of a model, which may be told several times."""
        if not tokens or not self.counted.add(answer):
            return
        model = model[:100]
        if model not in self.by_model and len(self.by_model) >= MODELS_MAX:
            model = next(iter(self.by_model))
        counts = self.by_model.setdefault(model, [0, 0, 0, 0])
        for number, one in enumerate(tokens[:4]):
            if type(one) is int and 0 < one <= TOKENS_MAX:
                counts[number] += one
