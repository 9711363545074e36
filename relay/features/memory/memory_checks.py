"""What finds memories here, for ``relay doctor``.

It looks at files, and at servers that answer. Nothing is run, started or changed: no broker, no
index, no model.
"""

from __future__ import annotations

import importlib.util
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from relay.config.manifest import read_manifest
from relay.config.trust import TRUSTED, candidates
from relay.core.errors import ConfigError
from relay.core.extras import adding
from relay.core.paths import Home
from relay.features.memory.embedding import have_numpy
from relay.features.memory.embedding.setup import installed
from relay.features.memory.extraction import left_in
from relay.features.memory.settings import MEMORY
from relay.features.memory.spec import StoreSpec, masked, own_embedder

#: How long one server may take to answer, name and all, in seconds.
SERVER_TIMEOUT = 2.0
_PORTS = {"http": 80, "https": 443}
#: What the client of qdrant means without a port, whatever the scheme.
_QDRANT_PORT = 6333
#: What the extra of a store's name installs.
_LIBRARIES = {"mem0": "mem0", "qdrant": "qdrant_client"}
_SETUP = "relay memory setup"

#: Level, text and hint, as relay.cli.doctor.Check has them.
Line = tuple[str, str, str]


def memory_lines(home: Home, cwd: str, environ: Mapping[str, str]) -> Iterator[Line]:
    """What finds memories in this folder, and what waits for a model."""
    try:
        store, computed = _applying(home, cwd)
    except ConfigError as error:
        yield "warn", error.message, error.hint
        yield from _last_words(home)
        return
    if computed:
        yield "ok", f"said by {computed} when it runs", "what it is: relay memory stats"
    else:
        try:
            spec = store.resolved(environ)
        except ConfigError as error:
            yield "warn", error.message, error.hint
        else:
            yield from _store(spec, home)
            yield from _embedder(spec, home)
    yield from _last_words(home)


def _applying(home: Home, cwd: str) -> tuple[StoreSpec, str]:
    """The store that applies in ``cwd``; else the file that makes it when it runs.

    Raises ConfigError when the file has mistakes, with which ``relay memory`` does nothing.
    """
    for one in reversed(candidates(home, cwd)):
        if one.state != TRUSTED or one.file is None:
            continue
        manifest = read_manifest(home, one.file.sha256)
        if manifest is None:
            return StoreSpec(), one.path
        if manifest.problem:
            raise ConfigError(
                f"relay memory does nothing while {one.path} has a mistake",
                hint="relay config check",
            )
        kept = manifest.features.get(MEMORY.key)
        if kept is not None:
            if "store" not in kept:
                return StoreSpec(), one.path
            store = StoreSpec.from_json(kept["store"])
            return (StoreSpec(), one.path) if store.backend == "searcher" else (store, "")
    return StoreSpec(), ""


def _store(spec: StoreSpec, home: Home) -> Iterator[Line]:
    if spec.backend == "local":
        yield "ok", _local(spec, home), ""
        return
    if importlib.util.find_spec(_LIBRARIES[spec.backend]) is None:
        yield "warn", f"{spec.title}: its library is not installed", adding(spec.backend)
        return
    store: Any = spec.config["vector_store"]
    try:
        if url := store.get("url"):
            parts = urlsplit(url)
            _connect(parts.hostname or "", parts.port or _QDRANT_PORT)
    except OSError as error:
        yield (
            "warn",
            f"{spec.title}: {error}",
            "memories are found by their words until it answers; how to start one: docs/memory.md",
        )
        return
    yield "ok", spec.title, ""


def _local(spec: StoreSpec, home: Home) -> str:
    section: Any = spec.config.get("embedder") or {}
    provider = section.get("provider", "minilm")
    if provider == "none":
        return "local, searched by words"
    if provider != "minilm":
        return f"local, searched by words and meaning ({provider})"
    if installed(home.models) is not None and have_numpy():
        return "local, searched by words and meaning (MiniLM)"
    return f"local, searched by words (by meaning, too, after {_SETUP})"


def _embedder(spec: StoreSpec, home: Home) -> Iterator[Line]:
    section: Any = spec.config.get("embedder") or {}
    provider = section.get("provider", "minilm")
    if provider == "minilm":
        if spec.backend != "local" and installed(home.models) is None:
            yield "warn", f"{spec.backend} needs an embedder, and none is set up", _SETUP
        return
    if provider == "none":
        return
    if not own_embedder(section):
        yield "ok", f"embedder {provider} of mem0's, not looked at", ""
        return
    name = f"embedder {provider}"
    local = "http://127.0.0.1:11434" if provider == "ollama" else "https://api.openai.com"
    url = str(section.get("url") or local)
    try:
        parts = urlsplit(url)
        _connect(parts.hostname or "", parts.port or _PORTS[parts.scheme])
    except OSError as error:
        yield "warn", f"{name} at {masked(url)}: {error}", "start it, or correct memory.config"
    else:
        yield "ok", f"{name} at {masked(url)}", ""


def _last_words(home: Home) -> Iterator[Line]:
    """What auto_save has not done yet."""
    where, found = left_in(home)
    failed = [one.failed for one in found if one.failed]
    if len(found) > len(failed):
        count = len(found) - len(failed)
        yield "ok", f"auto_save: last words that wait for the model: {count} ({where})", ""
    if failed:
        yield (
            "warn",
            f"auto_save: last words that came to nothing: {len(failed)} ({where}): {failed[-1]}",
            "they are tried again when the model has answered for a later session",
        )


# -- servers


def _connect(host: str, port: int) -> None:
    """Raises OSError unless somebody listens there. SERVER_TIMEOUT is for all, also for a name
    that is looked up."""
    errors: list[Exception | None] = []

    def run() -> None:
        try:
            socket.create_connection((host, port), SERVER_TIMEOUT).close()
            errors.append(None)
        except (OSError, ValueError) as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="relay-doctor", daemon=True)
    thread.start()
    thread.join(SERVER_TIMEOUT)
    if not errors:
        raise OSError(f"no answer within {SERVER_TIMEOUT:g} s")
    if errors[0] is not None:
        raise OSError(getattr(errors[0], "strerror", None) or str(errors[0]))
