"""mem0 with embedded qdrant, to be measured beside relay's own store: no LLM, no key, no network.

Imported only where mem0ai is installed. What mem0 writes goes into a temporary folder.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

_HOME = tempfile.TemporaryDirectory(prefix="relay-bench-mem0-")
atexit.register(_HOME.cleanup)
# Both are read when mem0 is imported.
os.environ["MEM0_TELEMETRY"] = "False"
os.environ["MEM0_DIR"] = _HOME.name

from mem0 import Memory  # noqa: E402
from mem0.configs.base import MemoryConfig  # noqa: E402
from mem0.embeddings.base import EmbeddingBase  # noqa: E402
from mem0.embeddings.configs import EmbedderConfig  # noqa: E402
from mem0.llms.base import LLMBase  # noqa: E402
from mem0.llms.configs import LlmConfig  # noqa: E402
from mem0.utils.factory import EmbedderFactory, LlmFactory  # noqa: E402
from memory_quality import Corpus, Make, Search  # noqa: E402

from relay.features.memory.embedding import Embedder  # noqa: E402

_USER = "bench"
_embedder: Embedder | None = None


class Ours(EmbeddingBase):  # type: ignore[misc, unused-ignore]
    """Relay's embedder as one of mem0's."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        assert _embedder is not None
        self.config.embedding_dims = _embedder.dims

    def embed(self, text: str, memory_action: Any = None) -> list[float]:
        """One vector."""
        assert _embedder is not None
        return [float(one) for one in _embedder.embed([text])[0]]


class NoModel(LLMBase):  # type: ignore[misc, unused-ignore]
    """In the place of a language model: nothing may ask it."""

    def __init__(self, config: Any = None) -> None:
        pass

    def generate_response(self, *args: Any, **kwargs: Any) -> Any:
        """Never called with ``infer=False``."""
        raise RuntimeError("mem0 asked for a language model")


EmbedderFactory.provider_to_class["relay"] = f"{__name__}.Ours"
LlmFactory.register_provider("none", f"{__name__}.NoModel")


class Mem0:
    """A store for memory_speed."""

    def __init__(self, folder: str, embedder: Embedder) -> None:
        global _embedder
        _embedder = embedder
        config = MemoryConfig(
            history_db_path=os.path.join(folder, "history.db"),
            vector_store={
                "provider": "qdrant",
                "config": {
                    "path": folder,
                    "collection_name": "bench",
                    "embedding_model_dims": embedder.dims,
                    "on_disk": True,
                },
            },
            embedder=EmbedderConfig.model_construct(provider="relay", config={}),
            llm=LlmConfig.model_construct(provider="none", config={}),
        )
        self._memory: Any = Memory(config)

    def fill(self, texts: Sequence[str]) -> None:
        """One by one: it knows no other way without a language model."""
        for text in texts:
            self.save(text)

    def save(self, text: str) -> object:
        """As its users do with ``infer=False``."""
        return self._memory.add(text, user_id=_USER, infer=False)

    def search(self, query: str) -> object:
        """Its best five."""
        return self._memory.search(query, filters={"user_id": _USER}, top_k=5)

    def texts(self, query: str, count: int) -> list[str]:
        """The texts of its best."""
        found = self._memory.search(query, filters={"user_id": _USER}, top_k=count, threshold=0.0)
        return [hit["memory"] for hit in found["results"]]

    def close(self) -> None:
        """Close its files."""
        self._memory.vector_store.client.close()


def searching(embedder: Embedder) -> Make:
    """For memory_quality: mem0 with the same embedder."""

    @contextmanager
    def make(corpus: Corpus) -> Iterator[Search]:
        ids = {memory.text: memory.id for memory in corpus.memories}
        with (
            tempfile.TemporaryDirectory(prefix="relay-bench-mem0-") as folder,
            closing(Mem0(folder, embedder)) as store,
        ):
            store.fill(list(ids))
            yield lambda query: [ids[text] for text in store.texts(query, 10)]

    return make
