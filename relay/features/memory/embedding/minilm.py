"""all-MiniLM-L6-v2 in numpy: text to vectors of 384 numbers, on the CPU, without torch.

The model: Wang et al., "MiniLM" (2020), a BERT encoder of six layers (Devlin et al., 2018), its
outputs averaged over the tokens and scaled to length 1 (Reimers and Gurevych, "Sentence-BERT",
2019). The weights are a folder that :mod:`relay.features.memory.embedding.setup` makes.
Texts are packed one after the other, not padded to one length: only attention keeps them apart.

Its tokenizer is the uncased WordPiece: Wu et al., "Google's Neural Machine Translation System"
(2016), section 4.1, with the clean-up of BERT: accents and case dropped, punctuation and Chinese
characters each a word of their own, the longest known pieces first. It gives the same numbers as
the tokenizer that the model was trained with, its handling of a special token in the text included;
only of 500 rare characters that Unicode has had since 2015 it sees more than that one.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relay.features.memory.embedding import EmbedderUnavailable, load_numpy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

NAME = "all-MiniLM-L6-v2"
DIMS = 384
#: Word pieces that the model was trained to read, both special tokens included; about 200 words.
TOKENS_MAX = 256
WEIGHTS, VOCABULARY = "model.safetensors", "vocab.txt"
_LAYERS, _HEADS, _INNER, _PIECES, _POSITIONS = 6, 12, 1536, 30522, 512
_EPSILON = 1e-12
#: Tokens that are worked on at once: what is between two layers then stays below 4 MB.
_PACK_TOKENS = 512
_GELU_ROWS = 32  # what a core's own cache holds: half the time of all rows at once
_HEADER_MAX = 1 << 20  # bytes; the real one has 11 408
_WORDS = "embeddings.word_embeddings.weight"


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer; matrices are (inputs, outputs). Query, key and value are one matrix."""

    qkv: tuple[Floats, Floats]
    mix: tuple[Floats, Floats]
    mix_norm: tuple[Floats, Floats]
    grow: tuple[Floats, Floats]
    shrink: tuple[Floats, Floats]
    norm: tuple[Floats, Floats]


class MiniLM:
    """The model, loaded. Not for two threads at once."""

    name = NAME
    dims = DIMS

    def __init__(self, folder: str) -> None:
        """Read the weights (45 MB into memory; the word table is read from the file as needed).

        Raises EmbedderUnavailable when ``folder`` does not hold them, or without numpy.
        """
        self._np = load_numpy()
        self._wordpiece = _vocabulary(os.path.join(folder, VOCABULARY))
        path = os.path.join(folder, WEIGHTS)
        try:
            self._weights = _Weights(path, self._np)
            try:
                self._load(self._weights)
            except BaseException:
                self._weights.close()
                raise
        except (LookupError, TypeError, ValueError) as error:
            raise _damaged(path, "it does not hold this model") from error

    def embed(self, texts: Sequence[str]) -> Floats:
        """float32 (len(texts), 384), C-contiguous, every row of length 1.

        Of a text longer than ``TOKENS_MAX`` word pieces the end is not read.
        """
        np = self._np
        encoded = [self._wordpiece.encode(text, TOKENS_MAX) for text in texts]
        rows: Floats = np.empty((len(texts), DIMS), dtype=np.float32)
        for pack in _packs([len(numbers) for numbers in encoded]):
            rows[pack] = self._run([encoded[index] for index in pack])
        return rows

    def close(self) -> None:
        """Let go of the file; ``embed`` may not be called any more."""
        self._weights.close()

    def _load(self, weights: _Weights) -> None:
        # All tokens are of the first segment: its row is added once, here.
        segment = weights.read("embeddings.token_type_embeddings.weight", (2, DIMS))[0]
        table = weights.read("embeddings.position_embeddings.weight", (_POSITIONS, DIMS))
        self._places = table[:TOKENS_MAX] + segment
        self._norm = weights.norm("embeddings.LayerNorm")
        self._layers = [_layer(weights, number) for number in range(_LAYERS)]

    def _run(self, encoded: Sequence[Sequence[int]]) -> Floats:
        np = self._np
        lengths = [len(numbers) for numbers in encoded]
        ends = np.cumsum(lengths).tolist()
        spans = [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]
        flow = self._weights.rows(_WORDS, [number for numbers in encoded for number in numbers])
        for span, length in zip(spans, lengths, strict=True):
            flow[span] += self._places[:length]
        flow = self._normed(flow, self._norm)
        for layer in self._layers:
            flow = self._through(layer, flow, spans)
        means: Floats = np.stack([flow[span].mean(axis=0) for span in spans])
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        return means

    def _through(self, layer: _Layer, flow: Floats, spans: Sequence[slice]) -> Floats:
        qkv = _dense(flow, layer.qkv)
        seen = self._np.empty_like(flow)
        for span in spans:
            seen[span] = self._attention(qkv[span])
        flow = self._normed(flow + _dense(seen, layer.mix), layer.mix_norm)
        inner = _dense(flow, layer.grow)
        for start in range(0, len(inner), _GELU_ROWS):
            block = inner[start : start + _GELU_ROWS]
            block[:] = self._gelu(block)
        return self._normed(flow + _dense(inner, layer.shrink), layer.norm)

    def _attention(self, qkv: Floats) -> Floats:
        """(tokens, 3 * DIMS) to (tokens, DIMS): each token looks at all tokens of its text."""
        tokens = len(qkv)
        heads = qkv.reshape(tokens, 3, _HEADS, DIMS // _HEADS).transpose(1, 2, 0, 3)
        query, key, value = heads
        scores: Any = query @ key.transpose(0, 2, 1)
        scores *= 1 / math.sqrt(DIMS // _HEADS)
        scores -= scores.max(axis=-1, keepdims=True)
        self._np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed: Floats = (scores @ value).transpose(1, 0, 2).reshape(tokens, DIMS)
        return mixed

    def _normed(self, flow: Floats, norm: tuple[Floats, Floats]) -> Floats:
        """Layer normalisation, in place."""
        flow -= flow.mean(axis=-1, keepdims=True)
        spread = self._np.einsum("ij,ij->i", flow, flow)[:, None] / DIMS
        flow /= self._np.sqrt(spread + _EPSILON)
        flow *= norm[0]
        flow += norm[1]
        return flow

    def _gelu(self, x: Floats) -> Floats:
        """``x * normal_cdf(x)`` by Abramowitz and Stegun, 7.1.26 (error of erf below 1.5e-7)."""
        np = self._np
        size = np.abs(x)
        size *= np.float32(math.sqrt(0.5))
        t = 1 / (1 + np.float32(0.3275911) * size)
        tail: Floats = np.full_like(t, 1.061405429)
        for factor in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
            tail *= t
            tail += np.float32(factor)
        tail *= t
        np.multiply(size, -size, out=size)
        tail *= np.exp(size, out=size)  # erfc(|x| / sqrt 2)
        tail *= np.abs(x)
        # x * cdf(x) is max(x, 0) - |x| * erfc(|x| / sqrt 2) / 2 on both sides of 0.
        tail *= np.float32(-0.5)
        tail += np.maximum(x, 0)
        return tail


class _Weights:
    """A safetensors file: little-endian length, JSON header, the numbers. Only float32."""

    def __init__(self, path: str, np: Any) -> None:
        self._np, self._path = np, path
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by close
        except OSError as error:
            raise _damaged(path, error.strerror or str(error)) from error
        try:
            (length,) = struct.unpack("<Q", self._bytes(0, 8))
            self._header: dict[str, Any] = json.loads(self._bytes(8, min(length, _HEADER_MAX)))
            self._base: int = 8 + length
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def read(self, name: str, shape: tuple[int, ...]) -> Floats:
        data = self._bytes(self.start(name), 4 * math.prod(shape))
        values = self._np.frombuffer(data, dtype="<f4")
        tensor: Floats = values.astype(self._np.float32, copy=False).reshape(shape)
        return tensor

    def start(self, name: str) -> int:
        """Where the tensor begins in the file."""
        return self._base + int(self._header[name]["data_offsets"][0])

    def dense(self, *names: str, shape: tuple[int, int]) -> tuple[Floats, Floats]:
        """Matrices of (outputs, inputs) side by side as one of (inputs, all outputs), and bias."""
        matrices = [self.read(f"{name}.weight", shape) for name in names]
        biases = [self.read(f"{name}.bias", shape[:1]) for name in names]
        # Copied row by row as they are used: for a short text that is a third faster.
        turned = self._np.ascontiguousarray(self._np.concatenate(matrices).T)
        return turned, self._np.concatenate(biases)

    def norm(self, name: str) -> tuple[Floats, Floats]:
        return self.read(f"{name}.weight", (DIMS,)), self.read(f"{name}.bias", (DIMS,))

    def rows(self, name: str, numbers: Sequence[int]) -> Floats:
        """These rows of a table of DIMS columns, as an array of its own.

        Read and not mapped: a file that is cut short under a mapping would kill the process.
        """
        start, width = self.start(name), 4 * DIMS
        data = bytearray().join(self._bytes(start + width * row, width) for row in numbers)
        table: Floats = self._np.frombuffer(data, dtype="<f4").reshape(len(numbers), DIMS)
        return table

    def _bytes(self, start: int, size: int) -> bytes:
        try:
            data = os.pread(self._file.fileno(), size, start)
        except OSError as error:
            raise _damaged(self._path, error.strerror or str(error)) from error
        if len(data) != size:
            raise _damaged(self._path, "its end is missing")
        return data


def _layer(weights: _Weights, number: int) -> _Layer:
    name = f"encoder.layer.{number}"
    attention = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
    return _Layer(
        qkv=weights.dense(*attention, shape=(DIMS, DIMS)),
        mix=weights.dense(f"{name}.attention.output.dense", shape=(DIMS, DIMS)),
        mix_norm=weights.norm(f"{name}.attention.output.LayerNorm"),
        grow=weights.dense(f"{name}.intermediate.dense", shape=(_INNER, DIMS)),
        shrink=weights.dense(f"{name}.output.dense", shape=(DIMS, _INNER)),
        norm=weights.norm(f"{name}.output.LayerNorm"),
    )


def _dense(flow: Floats, layer: tuple[Floats, Floats]) -> Floats:
    out: Floats = flow @ layer[0]
    out += layer[1]
    return out


def _packs(lengths: Sequence[int]) -> Iterator[list[int]]:
    """The texts' indices in groups of at most ``_PACK_TOKENS`` tokens, at least one in each."""
    pack: list[int] = []
    tokens = 0
    for index, length in enumerate(lengths):
        if pack and tokens + length > _PACK_TOKENS:
            yield pack
            pack, tokens = [], 0
        pack.append(index)
        tokens += length
    if pack:
        yield pack


def _vocabulary(path: str) -> WordPiece:
    try:
        with open(path, encoding="utf-8") as file:
            pieces = WordPiece(line.rstrip("\n") for line in file)
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    if len(pieces) != _PIECES:
        raise _damaged(path, f"it holds {len(pieces)} pieces instead of {_PIECES}")
    return pieces


def _damaged(path: str, reason: str) -> EmbedderUnavailable:
    return EmbedderUnavailable(
        f"the model's file {path} cannot be used: {reason}",
        hint="remove its folder, and run relay memory setup",
    )


PAD, UNKNOWN, START, END, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
#: Characters of a word; a longer one is unknown as a whole, however it could be divided.
WORD_MAX = 100
_CONTINUED = "##"
_SPECIAL = re.compile("(" + "|".join(re.escape(token) for token in SPECIAL) + ")")
#: Blocks whose characters are words, inclusive. 2B820 to 2B91F are missing in the original too.
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class _Cleaning(dict[int, str]):
    """What ``str.translate`` puts for a character; each is worked out when it is first met."""

    def __missing__(self, code: int) -> str:
        self[code] = found = _cleaned(chr(code))
        return found


class WordPiece:
    """A vocabulary, ready to use."""

    def __init__(self, vocabulary: Iterable[str]) -> None:
        """Take the pieces in the order of their numbers; raises ValueError without the special
        tokens, or when a piece stands there twice."""
        pieces = list(vocabulary)
        self._numbers = {piece: number for number, piece in enumerate(pieces)}
        if len(self._numbers) != len(pieces):
            raise ValueError("the vocabulary holds a piece twice")
        missing = [token for token in SPECIAL if token not in self._numbers]
        if missing:
            raise ValueError(f"the vocabulary lacks {', '.join(missing)}")
        self._unknown = self._numbers[UNKNOWN]
        self._longest = max(map(len, pieces))
        self._cleaning = _Cleaning()

    def __len__(self) -> int:
        return len(self._numbers)

    def encode(self, text: str, limit: int) -> list[int]:
        """At most ``limit`` numbers, ``[CLS]`` and ``[SEP]`` around them included; the text's end
        is dropped. ``limit`` is at least 2."""
        numbers = [self._numbers[START]]
        for found in self._words(text):
            numbers.extend(found)
            if len(numbers) >= limit - 1:
                del numbers[limit - 1 :]
                break
        numbers.append(self._numbers[END])
        return numbers

    def _words(self, text: str) -> Iterator[list[int]]:
        for part in _SPECIAL.split(text):
            if part in SPECIAL:
                yield [self._numbers[part]]
                continue
            plain = part if part.isascii() else unicodedata.normalize("NFD", part)
            for word in plain.translate(self._cleaning).split():
                yield self._pieces(word)

    def _pieces(self, word: str) -> list[int]:
        """The numbers of the longest pieces from the left; ``[UNK]`` when one is not known."""
        if len(word) > WORD_MAX:
            return [self._unknown]
        found: list[int] = []
        start, prefix = 0, ""
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                number = self._numbers.get(prefix + word[start:end])
                if number is not None:
                    break
            else:
                return [self._unknown]
            found.append(number)
            start, prefix = end, _CONTINUED
        return found


def _cleaned(char: str) -> str:
    """What stands for one character of decomposed text: spaces set it apart as a word."""
    category = unicodedata.category(char)
    if char in "\t\n\r" or category[0] == "Z":
        return " "
    if category in ("Cc", "Cf", "Co", "Cs", "Mn") or char == "\ufffd":
        return ""
    if _is_punctuation(char, category) or _is_ideograph(char):
        return f" {char} "
    return char.lower()


def _is_punctuation(char: str, category: str) -> bool:
    """Every printable ASCII character that is neither letter nor digit counts as well."""
    return category[0] == "P" or (char.isascii() and not char.isalnum())


def _is_ideograph(char: str) -> bool:
    code = ord(char)
    return any(first <= code <= last for first, last in _IDEOGRAPHS)
