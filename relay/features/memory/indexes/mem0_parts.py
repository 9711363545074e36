"""What relay puts into mem0. Importing this imports mem0: see
relay.features.memory.indexes.mem0.load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

from relay.features.memory.embedding import Embedder, embed_texts

_PROVIDER = "relay"


class OurEmbedding(EmbeddingBase):  # type: ignore[misc]
    """An embedder of relay's for mem0."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._embedder: Embedder = config.model_kwargs["embedder"]

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        """One vector."""
        vector: list[float] = embed_texts(self._embedder, [text])[0].tolist()
        return vector


class NoLLM(LLMBase):  # type: ignore[misc]
    """mem0 cannot be made without an LLM; relay never lets it ask one."""

    def __init__(self, config: Any = None) -> None:
        """Nothing is needed, so nothing is checked."""

    def generate_response(self, *_: Any, **__: Any) -> Any:
        """Never called: relay adds with ``infer=False``."""
        raise RuntimeError("relay gives mem0 no LLM")


class Mem0Embedder:
    """One of mem0's embedders, as relay's protocol has it. ``section``: memory.config.embedder."""

    def __init__(self, section: Mapping[str, Any]) -> None:
        config = dict(section)
        provider = str(config.pop("provider"))
        if dims := config.pop("dims", None):
            config["embedding_dims"] = dims
        if url := config.pop("url", None):
            config[f"{provider}_base_url"] = url
        self._model = EmbedderFactory.create(provider, config, None)
        self.name = f"mem0:{provider}:{config.get('model') or 'default'}"
        self.dims = 0

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See relay.features.memory.embedding.Embedder."""
        made = np.asarray([self._model.embed(text, "add") for text in texts], np.float32)
        self.dims = made.shape[1]
        lengths = np.linalg.norm(made, axis=1, keepdims=True)
        return np.ascontiguousarray(made / np.maximum(lengths, np.float32(1e-12)))

    def close(self) -> None:
        """Nothing of it can be closed."""


def make(store: dict[str, Any], embedder: Embedder) -> Any:
    """mem0's Memory on its qdrant store. Its history, which keeps every text, ends with it."""
    # With spaCy it would download a model, and keep names out of the texts in a second collection.
    spacy_models._load_failed_full = spacy_models._load_failed_lemma = True
    here = __name__
    EmbedderFactory.provider_to_class[_PROVIDER] = f"{here}.{OurEmbedding.__name__}"
    LlmFactory.register_provider(_PROVIDER, f"{here}.{NoLLM.__name__}")
    kwargs = {"model_kwargs": {"embedder": embedder}, "embedding_dims": embedder.dims}
    memory = Memory(
        MemoryConfig(
            history_db_path=":memory:",
            vector_store=VectorStoreConfig(provider="qdrant", config=store),
            # Made without validation, which knows mem0's own providers only.
            embedder=EmbedderConfig.model_construct(provider=_PROVIDER, config=kwargs),
            llm=LlmConfig.model_construct(provider=_PROVIDER, config={}),
        )
    )
    memory.vector_store._bm25_encoder = False  # else it downloads one; words are the files' affair
    return memory
