"""From a store's configuration in relay's words to mem0's own.

``section`` is what config.memory_spec makes of it: flat, in snake case; ``vector_store`` has mem0's
names, ``embedder`` has ``url`` and ``dims`` whatever mem0 calls them. The nested form, as mem0
writes it, is understood as well. A file of its own because it is tested by itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from relay.memory.vectors.qdrant_opening import COLLECTION, TIMEOUT

#: Those that must be told how long the vectors are; others refuse the key or ask themselves.
WITH_DIMS = (
    *("azure_ai_search", "azure_mysql", "baidu", "cassandra", "elasticsearch", "faiss", "milvus"),
    *("mongodb", "opensearch", "oracledb", "pgvector", "pinecone", "qdrant", "redis"),
    *("s3_vectors", "supabase", "turbopuffer", "valkey", "weaviate"),
)
#: Those that keep their memories in a folder when no server is named. mem0 would take one in the
#: shared temporary folder, or in the current one.
IN_FOLDER = ("qdrant", "chroma", "faiss")
#: libpq's: seconds, milliseconds.
_DEADLINES = {"connect_timeout": str(TIMEOUT), "tcp_user_timeout": str(TIMEOUT * 1000)}
_PARTS = ("user", "password", "host", "port", "dbname")
_ADDRESSES = ("url", "uri", "cluster_url", "endpoint", "host", "redis_url", "valkey_url")
_ADDRESSES_OF_SERVERS = (*_ADDRESSES, "api_key", "client")


def flat(section: object) -> dict[str, Any]:
    """The section with what is nested in its ``config`` beside its ``provider``."""
    found = dict(section) if isinstance(section, Mapping) else {}
    nested = found.pop("config", None)
    return {**found, **nested} if isinstance(nested, Mapping) else found


def store(section: Mapping[str, Any], folder: str, dims: int) -> tuple[str, dict[str, Any]]:
    """The provider, and the configuration that mem0 wants for it. ``dims``: of the embedder."""
    found = flat(section)
    provider = str(found.pop("provider", None) or "qdrant")
    found.setdefault("collection_name", COLLECTION)
    if provider in WITH_DIMS:
        found["embedding_model_dims"] = dims
    if provider in IN_FOLDER and not any(found.get(key) for key in _ADDRESSES_OF_SERVERS):
        found.setdefault("path", os.path.join(folder, provider))
    if provider == "pgvector":
        found = _pgvector(found)
    return provider, found


def wanted_dims(section: Mapping[str, Any]) -> int | None:
    """The length of vectors that the configuration of the store names."""
    found = flat(section).get("embedding_model_dims")
    return found if isinstance(found, int) else None


def embedder(section: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The provider of one of mem0's embedders, and its configuration."""
    found = flat(section)
    provider = str(found.pop("provider", None) or "openai")
    if dims := found.pop("dims", None):
        found["embedding_dims"] = dims
    if url := found.pop("url", None):
        found[f"{provider}_base_url"] = url
    return provider, found


def server(provider: str, config: Mapping[str, Any]) -> str:
    """What a person calls the server: its address without a name or a password; "" for none."""
    for key in _ADDRESSES:
        if address := config.get(key):
            plain = _without_userinfo(str(address))
            port = config.get("port")
            return f"{plain}:{port}" if port and key == "host" else plain
    if address := config.get("connection_string"):
        parts = urlsplit(str(address))
        return f"{provider} {_host(parts.netloc)}" if parts.netloc else provider
    return "" if provider in IN_FOLDER and config.get("path") else provider


def _pgvector(found: dict[str, Any]) -> dict[str, Any]:
    """With deadlines: libpq waits for ever by itself. A password may hold any character."""
    address = found.get("connection_string")
    if not address and found.get("host"):
        names = [quote(str(found.get(key) or ""), safe="") for key in ("user", "password")]
        place = f"{found['host']}:{found.get('port') or 5432}"
        name = quote(str(found.get("dbname") or "postgres"), safe="")
        address = f"postgresql://{names[0]}:{names[1]}@{place}/{name}"
    if not address:
        return found
    rest = {key: value for key, value in found.items() if key not in _PARTS}
    return {**rest, "connection_string": _timed(str(address))}


def _timed(address: str) -> str:
    """With deadlines for connecting, and for a server that no longer takes what is sent."""
    missing = {name: value for name, value in _DEADLINES.items() if name not in address}
    if "://" not in address:
        return " ".join([address, *(f"{name}={value}" for name, value in missing.items())])
    parts = urlsplit(address)
    query = [*parse_qsl(parts.query, keep_blank_values=True), *missing.items()]
    return parts._replace(query=urlencode(query)).geturl()


def _without_userinfo(address: str) -> str:
    if "://" not in address:
        return address.rpartition("@")[2]
    scheme, _, rest = address.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}://{_host(place)}{slash}{path.partition('?')[0]}"


def _host(place: str) -> str:
    return place.rpartition("@")[2]
