"""The benchmark reads LoCoMo's file as it is, and counts as it says."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

#: Of the same shape as LoCoMo's file, and made up.
SAMPLE = [
    {
        "sample_id": "conv-0",
        "conversation": {
            "speaker_a": "Ann",
            "speaker_b": "Ben",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                {"speaker": "Ann", "dia_id": "D1:1", "text": "I keep bees now."},
                {
                    "speaker": "Ben",
                    "dia_id": "D1:2",
                    "text": "Look at my boat!",
                    "img_url": ["x"],
                    "blip_caption": "a photo of a red boat",
                },
            ],
            "session_2_date_time": "some day",
            "session_2": [{"speaker": "Ann", "dia_id": "D2:1", "text": "The hive has swarmed."}],
            "session_3_date_time": "1:00 am on 1 June, 2023",
        },
        "qa": [
            {"question": "Who keeps bees?", "evidence": ["D1:1"], "category": 4},
            {"question": "What happened?", "evidence": ["D1:1; D2:01"], "category": 1},
            {"question": "Nothing says this", "evidence": [], "category": 3},
            {"question": "This is not there", "evidence": ["D9:9"], "category": 2},
            {"question": "Which colour has the boat?", "evidence": ["D1:2", "D"], "category": 5},
        ],
    }
]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "locomo.json"
    path.write_text(json.dumps(SAMPLE))
    return str(path)


def test_the_file_is_read_as_the_paper_does(quality: ModuleType, file: str) -> None:
    (corpus,) = quality.locomo(file)
    texts = {memory.id: memory.text for memory in corpus.memories}
    assert texts == {
        "d1-1": 'Ann said, "I keep bees now."',
        "d1-2": 'Ben said, "Look at my boat!" and shared a photo of a red boat.',
        "d2-1": 'Ann said, "The hive has swarmed."',
    }
    times = [memory.created_ms for memory in corpus.memories]
    assert times == [1683554160000, 1683554160000, 0]


def test_questions_without_evidence_do_not_count(quality: ModuleType, file: str) -> None:
    (corpus,) = quality.locomo(file)
    asked = {question.category: set(question.evidence) for question in corpus.questions}
    assert asked == {
        "single": {"d1-1"},
        "multi-hop": {"d1-1", "d2-1"},
        "adversarial": {"d1-2"},
    }


def test_the_figures_are_those_of_the_books(quality: ModuleType) -> None:
    ids = ["a", "b", "c", "d", "e", "f"]
    assert quality.figures(ids, frozenset("b")) == (1.0, 1.0, 0.5, 1.0)
    assert quality.figures(ids, frozenset("bf")) == (0.5, 1.0, 0.5, 1.0)
    assert quality.figures(ids, frozenset("f")) == (0.0, 1.0, 1 / 6, 0.0)
    assert quality.figures(ids, frozenset("x")) == (0.0, 0.0, 0.0, 0.0)


def test_the_whole_way_with_words(quality: ModuleType, file: str) -> None:
    found = quality.measure(quality.locomo(file), quality.local(None))
    assert found["single"] == {
        "questions": 1.0,
        "recall@5": 1.0,
        "recall@10": 1.0,
        "mrr": 1.0,
        "hit@5": 1.0,
    }
    assert found["adversarial"]["mrr"] == 1.0 and found["all"]["questions"] == 3.0
    assert found["multi-hop"]["recall@5"] == 0.0  # no word of it is in the evidence


def test_the_probes_are_enough_and_differ(quality: ModuleType) -> None:
    (corpus,) = quality.probes()
    assert len(corpus.memories) >= 40 and len(corpus.questions) == 2 * len(corpus.memories)
    assert len({memory.text for memory in corpus.memories}) == len(corpus.memories)
    assert len({question.text for question in corpus.questions}) == len(corpus.questions)
