"""The real model against what its reference implementation computed for the same texts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.features.memory.embedding import Embedder, EmbedderUnavailable
from relay.features.memory.embedding.minilm import (
    DIMS,
    SPECIAL,
    TOKENS_MAX,
    VOCABULARY,
    WEIGHTS,
    WORD_MAX,
    MiniLM,
    WordPiece,
)

REFERENCE = json.loads((Path(__file__).parent / "reference.json").read_text())
TEXTS = [case["text"] for case in REFERENCE["cases"]]
EXACT = 1e-5


def test_the_tokens_are_those_of_the_reference(weights: str) -> None:
    lines = Path(weights, VOCABULARY).read_text(encoding="utf-8").split("\n")[:-1]
    pieces = WordPiece(lines)
    for case in REFERENCE["cases"]:
        assert pieces.encode(case["text"], TOKENS_MAX) == case["tokens"], case["text"]


def test_the_vectors_are_those_of_the_reference(minilm: MiniLM) -> None:
    vectors = minilm.embed(TEXTS)
    known = np.array([case["vector"] for case in REFERENCE["cases"]]) / 1e6
    assert np.abs(vectors[:, :: REFERENCE["every"]] - known).max() < EXACT
    similar = np.array(REFERENCE["similarities"]) / 1e6
    assert np.abs(vectors @ vectors.T - similar).max() < EXACT


def test_the_published_example_holds(minilm: MiniLM) -> None:
    """The similarities that the model's page shows for its example."""
    asked, *others = minilm.embed(
        [
            "That is a happy person",
            "That is a happy dog",
            "That is a very happy person",
            "Today is a sunny day",
        ]
    )
    assert [round(float(asked @ other), 3) for other in others] == [0.695, 0.943, 0.257]


def test_a_vector_does_not_depend_on_the_texts_beside_it(minilm: MiniLM) -> None:
    many = [*TEXTS, *reversed(TEXTS)]  # more than one pack
    together = minilm.embed(many)
    alone = np.concatenate([minilm.embed([text]) for text in TEXTS])
    assert np.abs(together[: len(TEXTS)] - alone).max() < EXACT
    assert np.abs(together[-len(TEXTS) :] - alone[::-1]).max() < EXACT


def test_rows_are_what_the_protocol_says(minilm: MiniLM) -> None:
    embedder: Embedder = minilm
    rows = embedder.embed(["one", "", "two " * 5000])
    assert rows.dtype == np.float32
    assert (rows.shape, rows.flags.c_contiguous) == ((3, DIMS), True)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert minilm.embed([]).shape == (0, DIMS)
    assert (minilm.name, minilm.dims) == ("all-MiniLM-L6-v2", 384)


OTHER_SHAPES = (
    b'{"embeddings.word_embeddings.weight":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}'
)
#: What is wrong with which file: its new content, or a change of the old one.
DAMAGES: dict[str, tuple[str, bytes | None | Callable[[bytes], bytes]]] = {
    "cut": (WEIGHTS, lambda data: data[:-1_000_000]),
    "garbage": (WEIGHTS, b"\xff" * 1000),
    "empty": (WEIGHTS, b""),
    "no header": (WEIGHTS, (5).to_bytes(8, "little") + b"12345" * 9),
    "other shapes": (WEIGHTS, len(OTHER_SHAPES).to_bytes(8, "little") + OTHER_SHAPES + b"1234"),
    "no weights": (WEIGHTS, None),
    "short vocabulary": (VOCABULARY, lambda data: b"\n".join(data.split(b"\n")[:2000])),
    "binary vocabulary": (VOCABULARY, b"\xff\xfe"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_files_are_named(
    weights: str, tmp_path: Path, damage: tuple[str, bytes | None | Callable[[bytes], bytes]]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(weights, folder)
    file, now = folder / damage[0], damage[1]
    if now is None:
        file.unlink()
    else:
        file.write_bytes(now(file.read_bytes()) if callable(now) else now)
    with pytest.raises(EmbedderUnavailable, match=str(folder)) as raised:
        MiniLM(str(folder))
    assert "relay memory setup" in raised.value.hint


def test_a_file_that_is_cut_later_is_an_error_and_not_the_end(weights: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(weights, folder)
    model = MiniLM(str(folder))
    os.truncate(folder / WEIGHTS, 2_000_000)
    with pytest.raises(EmbedderUnavailable, match="its end is missing"):
        model.embed(["the last words of the vocabulary: zzz"])
    model.close()
    model.close()


def test_numpy_is_imported_late_and_with_one_thread_that_nothing_inherits(weights: str) -> None:
    program = (
        "import os, sys\n"
        "from relay.features.memory.embedding import endpoint, minilm, setup\n"
        "assert 'numpy' not in sys.modules\n"
        f"minilm.MiniLM({weights!r}).embed(['one'])\n"
        "assert 'OPENBLAS_NUM_THREADS' not in os.environ\n"
        "print(len(os.listdir('/proc/self/task')) if os.path.isdir('/proc/self') else 1)\n"
    )
    env = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_without_numpy_it_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('not here')\n")
    program = (
        "from relay.core.errors import RelayError\n"
        "from relay.features.memory.embedding.minilm import MiniLM\n"
        "try:\n"
        "    MiniLM('/nowhere')\n"
        "except RelayError as error:\n"
        "    print(error.code, error.hint)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith("numpy_missing") and "add it: " in done.stdout, done


PIECES = [*SPECIAL, "un", "##aff", "##able", "a", "##b", "c", "-", "#", "日", "naive", "σ", "i"]
WORDS = WordPiece(PIECES)


def pieces(text: str, limit: int = 100) -> list[str]:
    numbers = WORDS.encode(text, limit)
    assert (PIECES[numbers[0]], PIECES[numbers[-1]]) == ("[CLS]", "[SEP]")
    return [PIECES[number] for number in numbers[1:-1]]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        (" \t\r\n\u00a0\u3000\u2028 ", []),
        ("unaffable", ["un", "##aff", "##able"]),
        ("UnAFFable", ["un", "##aff", "##able"]),
        ("unx", ["[UNK]"]),  # no part of a word stands for it
        ("a-c", ["a", "-", "c"]),
        ("a日c", ["a", "日", "c"]),
        ("na\u00efve NAI\u0308VE", ["naive", "naive"]),
        ("a\u200bb a\u0000b a\ufffdb", ["a", "##b"] * 3),  # control characters join
        ("\u03a3\u03a3 \u03a3", ["[UNK]", "σ"]),  # no other sigma at the end of a word
        ("\u0130", ["i"]),
        ("a[MASK]c", ["a", "[MASK]", "c"]),
        ("##b", ["#", "#", "[UNK]"]),
        ("a" + "b" * (WORD_MAX - 1), ["a", *["##b"] * (WORD_MAX - 1)]),
        ("a" + "b" * WORD_MAX, ["[UNK]"]),
    ],
)
def test_words_fall_into_the_longest_known_pieces(text: str, found: list[str]) -> None:
    assert pieces(text, 1000) == found


@given(st.text(), st.integers(2, 20))
def test_any_text_has_numbers_within_the_limit(text: str, limit: int) -> None:
    numbers = WORDS.encode(text, limit)
    assert 2 <= len(numbers) <= limit
    assert numbers == [*WORDS.encode(text, 10_000)[:-1][: limit - 1], numbers[-1]]
    assert all(0 <= number < len(WORDS) for number in numbers)


@pytest.mark.parametrize(
    ("vocabulary", "reason"), [(["a"], "lacks"), ([*SPECIAL, "a", "a"], "twice")]
)
def test_a_wrong_vocabulary_is_refused(vocabulary: list[str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        WordPiece(vocabulary)
