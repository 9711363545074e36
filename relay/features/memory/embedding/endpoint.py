"""Vectors from a server: ollama's ``/api/embed``, or ``/v1/embeddings`` as OpenAI has it.

After a failure the server is left alone for REST seconds, so that one that hangs holds up one
caller and not all.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from relay.config.llm import LLM, LLMApi, refusal
from relay.core.http import RequestFailed, Response, request
from relay.features.memory.embedding import EmbedderUnavailable, load_numpy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

#: Seconds for which a server is left alone after a failure.
REST = 15.0
#: Texts of one request.
BATCH_MAX = 64
#: Numbers of a vector; the largest of today's models have 8192.
DIMS_MAX = 16384
#: Bytes of an answer for each text of the request: numbers are written with up to 25.
_BYTES_A_NUMBER = 32
_ANSWER_MIN = 64 * 1024
#: Statuses of a refusal that may be due to a text's length; then the texts are cut once more.
_TOO_LONG = (400, 413)
_SHORTER = 4


#: Where servers of these kinds make vectors.
PATHS = {LLMApi.OLLAMA: "/api/embed", LLMApi.OPENAI: "/v1/embeddings"}
#: Characters of a text that are read: models read only so much, and some refuse more.
CHARS_MAX = 6000
#: Seconds for one request.
TIMEOUT = 20.0


class EndpointEmbedder:
    """An embedder on a server. May not be called in a thread that runs an event loop.

    The deadline is for all of a request but the look-up of the host's name, which cannot be broken
    off: a resolver that hangs is waited for.
    """

    def __init__(
        self,
        model: LLM,
        *,
        dims: int = 0,
        timeout: float = TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is asked yet. ``dims``: what the vectors must have; 0 takes it from the first
        answer."""
        self._model = model
        self._timeout = timeout
        self._dims = dims
        self._clock = clock
        self._failed: tuple[float, EmbedderUnavailable] | None = None
        self._np = load_numpy()

    @property
    def name(self) -> str:
        """The same model on another server is the same embedder."""
        return f"{self._model.api.value}:{self._model.model}"

    @property
    def dims(self) -> int:
        """0 before the first answer, unless it was given."""
        return self._dims

    def embed(self, texts: Sequence[str]) -> Floats:
        """float32 (len(texts), dims), C-contiguous, rows of length 1.

        Raises EmbedderUnavailable when the server does not answer, or not with such vectors.
        """
        self._let_rest()
        parts = []
        try:
            for start in range(0, len(texts), BATCH_MAX):
                parts.append(self._batch(texts[start : start + BATCH_MAX]))
        except EmbedderUnavailable as error:
            self._failed = (self._clock() + REST, error)
            raise
        if not parts:
            empty: Floats = self._np.empty((0, self._dims), dtype=self._np.float32)
            return empty
        rows: Floats = self._np.concatenate(parts)
        return rows

    def close(self) -> None:
        """Nothing is held between two calls."""

    def _let_rest(self) -> None:
        if self._failed is None:
            return
        until, error = self._failed
        left = until - self._clock()
        if left > 0:
            raise EmbedderUnavailable(
                f"{error.message} (asked again in {math.ceil(left)} s)",
                hint=error.hint,
                code=error.code,
            )
        self._failed = None

    def _batch(self, texts: Sequence[str]) -> Floats:
        answer = self._ask([text[:CHARS_MAX] for text in texts])
        if answer.status in _TOO_LONG:
            # How long a text may be is counted in tokens, by the model's own measure.
            answer = self._ask([text[: CHARS_MAX // _SHORTER] for text in texts])
        if answer.status != 200:
            why, hint = refusal(self._model, answer.status, answer.body)
            hint = hint or "memories are saved and found by their words until it answers"
            raise self._unavailable(why, hint)
        return self._rows(self._vectors(answer.body), len(texts))

    def _ask(self, texts: Sequence[str]) -> Response:
        model = self._model
        asked: dict[str, object] = {"model": model.model, "input": texts}
        if model.api is LLMApi.OPENAI:
            asked["encoding_format"] = "float"
        call = request(
            "POST",
            model.url,
            [("authorization", f"Bearer {model.key}")] if model.key else [],
            json.dumps(asked).encode(),
            timeout=self._timeout,
            body_max=_ANSWER_MIN + len(texts) * (self._dims or DIMS_MAX) * _BYTES_A_NUMBER,
        )
        try:
            return asyncio.run(call)
        except RequestFailed as failed:
            hint = f"is the server at {model.host} running?"
            raise self._unavailable(failed.message, hint) from failed

    def _vectors(self, body: bytes) -> list[Any]:
        """The vectors in the order of the texts, not looked at yet."""
        try:
            told = json.loads(body)
            if self._model.api is LLMApi.OLLAMA:
                return list(told["embeddings"])
            data = sorted(told["data"], key=lambda entry: int(entry["index"]))
            if [entry["index"] for entry in data] != list(range(len(data))):
                raise self._nonsense("its vectors are not numbered in order")
            return [entry["embedding"] for entry in data]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._nonsense("its answer holds no vectors") from error

    def _rows(self, vectors: list[Any], count: int) -> Floats:
        np = self._np
        if len(vectors) != count:
            raise self._nonsense(f"it made {len(vectors)} vectors of {count} texts")
        try:
            rows: Floats = np.array(vectors, dtype=np.float64)
        except (ValueError, TypeError, OverflowError) as error:
            raise self._nonsense("its vectors are not numbers, or of different lengths") from error
        if rows.ndim != 2 or not 0 < rows.shape[1] <= DIMS_MAX:
            raise self._nonsense("its vectors are not lists of numbers")
        if self._dims and rows.shape[1] != self._dims:
            raise self._nonsense(
                f"its vectors have {rows.shape[1]} numbers, not {self._dims}",
                "set the embedder's dims to what this model makes",
                code="embedder_dims",
            )
        with np.errstate(all="ignore"):
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        if not (np.isfinite(lengths).all() and (lengths > 0).all()):
            raise self._nonsense("one of its vectors is zero, or not finite")
        self._dims = rows.shape[1]
        scaled: Floats = np.ascontiguousarray(rows / lengths, dtype=np.float32)
        return scaled

    def _nonsense(
        self, reason: str, hint: str = "", *, code: str | None = None
    ) -> EmbedderUnavailable:
        model = self._model
        hint = hint or f"is {model.url} an embedding endpoint of the kind {model.api.value}?"
        return self._unavailable(reason, hint, code=code)

    def _unavailable(
        self, reason: str, hint: str, *, code: str | None = None
    ) -> EmbedderUnavailable:
        return EmbedderUnavailable(
            f"the embedder {self.name} at {self._model.host}: {reason}", hint=hint, code=code
        )
