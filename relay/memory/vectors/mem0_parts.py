"""What relay puts into mem0. Importing this imports mem0: see mem0_points.load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mem0 import Memory
from mem0.configs.base import MemoryConfig
from mem0.embeddings.base import EmbeddingBase
from mem0.embeddings.configs import EmbedderConfig
from mem0.llms.base import LLMBase
from mem0.llms.configs import LlmConfig
from mem0.utils import spacy_models
from mem0.utils.factory import EmbedderFactory, LlmFactory
from mem0.vector_stores.configs import VectorStoreConfig
from numpy.typing import NDArray

from relay.memory.vectors import words
from relay.memory.vectors.embedding import Embedding

_PROVIDER = "relay"


class OurEmbedding(EmbeddingBase):  # type: ignore[misc]
    """An embedder of relay's for mem0."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._embedding: Embedding = config.model_kwargs["embedding"]

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        """One vector."""
        return self._embedding.vectors([text])[0]


class NoLLM(LLMBase):  # type: ignore[misc]
    """mem0 cannot be made without an LLM; relay never lets it ask one."""

    def __init__(self, config: Any = None) -> None:
        """Nothing is needed, so nothing is checked."""

    def generate_response(self, *_: Any, **__: Any) -> Any:
        """Never called: relay saves with ``infer=False``."""
        raise RuntimeError("relay gives mem0 no LLM")


class NoHistory:
    """In the place of mem0's history, which would keep every text, also of what is deleted."""

    def add_history(self, *_: Any, **__: Any) -> None:
        """Nothing is kept."""

    def get_history(self, *_: Any, **__: Any) -> list[Any]:
        """Nothing is there."""
        return []

    def close(self) -> None:
        """Nothing is open."""


class Mem0Embedder:
    """One of mem0's embedders, as relay's protocol has it."""

    def __init__(self, provider: str, config: dict[str, Any]) -> None:
        """Raises whatever mem0 raises for a configuration that it cannot use."""
        self._model = EmbedderFactory.create(provider, config, None)
        self.name = f"mem0:{provider}:{config.get('model') or 'default'}"
        self.dims = 0

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See relay.memory.embedding.Embedder."""
        made = np.asarray([self._model.embed(text, "add") for text in texts], np.float32)
        self.dims = made.shape[1]
        lengths = np.linalg.norm(made, axis=1, keepdims=True)
        return np.ascontiguousarray(made / np.maximum(lengths, np.float32(1e-12)))

    def close(self) -> None:
        """Nothing of it can be closed."""


@dataclass(frozen=True)
class _Sparse:
    indices: NDArray[np.uint32]
    values: NDArray[np.float32]


class Encoder:
    """Words for mem0's qdrant store, in the place of a model that it would download.

    ``also``: what is found by its words beside the text that is written next.
    """

    def __init__(self) -> None:
        self.also = ""

    def embed(self, texts: Sequence[str]) -> Iterator[_Sparse]:
        """One sparse vector for each text."""
        for text in texts:
            numbers, weights = words.of_text(f"{text}\n{self.also}")
            yield _Sparse(np.asarray(numbers, np.uint32), np.asarray(weights, np.float32))


def make(store: dict[str, Any], embedding: Embedding) -> Any:
    """mem0's Memory on its qdrant store. Raises whatever mem0 raises."""
    # With spaCy it would download a model, and keep names out of the texts in a second collection.
    spacy_models._load_failed_full = spacy_models._load_failed_lemma = True
    here = __name__
    EmbedderFactory.provider_to_class[_PROVIDER] = f"{here}.{OurEmbedding.__name__}"
    LlmFactory.register_provider(_PROVIDER, f"{here}.{NoLLM.__name__}")
    kwargs = {"model_kwargs": {"embedding": embedding}, "embedding_dims": embedding.dims}
    memory = Memory(
        MemoryConfig(
            history_db_path=":memory:",
            vector_store=VectorStoreConfig(provider="qdrant", config=store),
            # Made without validation, which knows mem0's own providers only.
            embedder=EmbedderConfig.model_construct(provider=_PROVIDER, config=kwargs),
            llm=LlmConfig.model_construct(provider=_PROVIDER, config={}),
        )
    )
    memory.db.close()
    memory.db = NoHistory()
    return memory
