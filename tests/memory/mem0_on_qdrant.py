"""Runs the real mem0 on a qdrant server, without a key, and prints what it answered as JSON.

A process of its own, since mem0 reads its environment when it is imported: ``MEM0_DIR`` and
``MEM0_TELEMETRY`` must be set, and no test may import this. The arguments are the server's url and
three facts.
"""

from __future__ import annotations

import hashlib
import json
import sys
import types
from typing import Any

from mem0 import Memory
from mem0.configs.base import MemoryConfig
from mem0.embeddings.base import EmbeddingBase
from mem0.embeddings.configs import EmbedderConfig
from mem0.llms.base import LLMBase
from mem0.llms.configs import LlmConfig
from mem0.utils.factory import EmbedderFactory, LlmFactory

DIMS = 64
USER = {"user_id": "project:/src/shop"}


class WordEmbedder(EmbeddingBase):  # type: ignore[misc]
    """Counts words in as many buckets as a vector is long: alike texts get alike vectors."""

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        vector = [0.0] * DIMS
        for word in text.lower().split():
            vector[hashlib.sha256(word.encode()).digest()[0] % DIMS] += 1.0
        return vector


class NoLlm(LLMBase):  # type: ignore[misc]
    """mem0 asks none when it does not infer."""

    def __init__(self, config: Any = None) -> None:
        pass

    def generate_response(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("there is no LLM")


def opened(url: str) -> Any:
    """mem0's Memory on the server at ``url``."""
    module = types.ModuleType("words_for_mem0")
    vars(module).update(WordEmbedder=WordEmbedder, NoLlm=NoLlm)
    sys.modules[module.__name__] = module
    EmbedderFactory.provider_to_class["words"] = "words_for_mem0.WordEmbedder"
    LlmFactory.register_provider("none", "words_for_mem0.NoLlm")
    store = {"url": url, "collection_name": "mem0", "embedding_model_dims": DIMS}
    return Memory(
        MemoryConfig(
            history_db_path=":memory:",
            vector_store={"provider": "qdrant", "config": store},
            # Their own checks know only the names of mem0's providers.
            embedder=EmbedderConfig.model_construct(provider="words", config={}),
            llm=LlmConfig.model_construct(provider="none", config={}),
        )
    )


def main() -> None:
    """Add, find, list, change and delete."""
    memory = opened(sys.argv[1])
    ids = [
        memory.add(text, metadata={"number": number}, infer=False, **USER)["results"][0]["id"]
        for number, text in enumerate(sys.argv[2:])
    ]
    answer: dict[str, Any] = {"slot": memory.vector_store._has_bm25_slot}
    answer["found"] = texts(memory.search("redis tests port", filters=USER, threshold=0.0))
    answer["other"] = texts(memory.search("redis", filters={"user_id": "bob"}, threshold=0.0))
    numbered = memory.get_all(filters={**USER, "number": {"gte": 1}})
    answer["numbered"] = sorted(texts(numbered))
    memory.update(ids[0], text="The tests need Valkey", metadata={"number": 7})
    answer["changed"] = memory.get(ids[0])["memory"], memory.get(ids[0])["metadata"]["number"]
    memory.delete(ids[1])
    answer["left"] = sorted(texts(memory.get_all(filters=USER)))
    print(json.dumps(answer))


def texts(answer: Any) -> list[str]:
    """The texts in what mem0 answered."""
    return [one["memory"] for one in answer["results"]]


if __name__ == "__main__":
    main()
