"""What goes wrong in somebody else's store, as errors of relay's. The one place that knows them.

Errors are known by the names of their classes, so that nothing has to be imported for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from relay.core.errors import ConfigError, RelayError, StorageError
from relay.directive.redact import redact
from relay.memory.backend import StoreUnavailable
from relay.memory.embedding import EmbedderUnavailable

#: package.class of what is raised when a server is away, too slow or too busy.
_AWAY = frozenset(
    {
        *("builtins.ConnectionError", "builtins.TimeoutError", "socket.gaierror", "ssl.SSLError"),
        *("httpx.TransportError", "httpcore.NetworkError", "httpcore.TimeoutException"),
        *("httpx2.TransportError", "httpcore2.NetworkError", "httpcore2.TimeoutException"),
        *("qdrant_client.ResourceExhaustedResponse", "grpc.RpcError", "grpc.FutureTimeoutError"),
        *("urllib3.HTTPError", "urllib.URLError", "requests.ConnectionError", "requests.Timeout"),
        *("botocore.EndpointConnectionError", "botocore.ConnectTimeoutError"),
        *("openai.APIConnectionError", "openai.RateLimitError", "openai.InternalServerError"),
        *("mem0.NetworkError", "mem0.RateLimitError"),
    }
)
#: The server answers, but not to this key.
_REFUSED = frozenset(
    {
        *("mem0.AuthenticationError", "openai.AuthenticationError"),
        "openai.PermissionDeniedError",
    }
)
_REASON_MAX = 300  # characters of somebody else's words
_DEPTH_MAX = 8
_DOWN = (429, 500, 502, 503, 504)


@contextmanager
def mapped(server: str) -> Iterator[None]:
    """Whatever is raised within is an error of relay's. ``server``: its name, "" for a folder."""
    try:
        yield
    except RelayError as error:
        if isinstance(error, EmbedderUnavailable):
            raise no_vectors(error) from error
        raise
    except Exception as error:
        raise translated(error, server) from error


def no_vectors(error: EmbedderUnavailable) -> StoreUnavailable:
    """A memory without a vector cannot be stored here; with the embedder back it can."""
    return StoreUnavailable(
        f"memories need a vector here: {error.message}",
        hint=error.hint or "start the embedder, or choose another in memory.config",
        details={"embedder": True},
    )


def translated(error: Exception, server: str) -> RelayError:
    """The error of relay's for anything that a store raised."""
    where = f"the memory server {server}" if server else "the store of memories"
    for cause in _causes(error):
        status = getattr(cause, "status_code", None)
        names = _names(cause)
        if status in (401, 403) or names & _REFUSED:
            return ConfigError(
                f"{where} refuses relay: {reason(cause)}",
                hint="check the api_key or the password in memory.config",
                details={"server": server},
            )
        if status in _DOWN or names & _AWAY:
            return unavailable(server, reason(cause))
        if status == 404 and server:
            return StorageError(
                f"{where} no longer has the collection: {reason(cause)}",
                hint="somebody removed it; relay makes a new one after: relay broker stop",
                details={"server": server},
            )
    said = reason(error)
    if "dimension" in said.lower():
        return ConfigError(
            f"{where} takes other vectors than the embedder makes: {said}",
            hint="choose another collection_name in memory.config, or the former embedder",
        )
    return StorageError(
        f"{where} failed: {said}",
        hint="look at its log" if server else "check that the disk has room and is writable",
        details={"server": server},
    )


def unavailable(server: str, why: str) -> StoreUnavailable:
    """The server is away."""
    return StoreUnavailable(
        f"the memory server {server} cannot be reached: {why}",
        hint="start it, or correct its address in memory.config; relay doctor shows whether it"
        " answers",
        details={"server": server},
    )


def reason(error: BaseException) -> str:
    """Its words in one line, without secrets."""
    said = " ".join(_said(error).split()) or " ".join(str(getattr(error, "source", "")).split())
    name = type(error).__name__
    plain = said if said and not isinstance(error, KeyError) else f"{name} {said}".strip()
    return redact(plain)[:_REASON_MAX]


def _said(error: BaseException) -> str:
    """pydantic repeats the whole configuration that it refuses, keys and passwords too."""
    if "pydantic_core.ValidationError" not in _names(error):
        return str(error)
    problems = error.errors(include_input=False, include_url=False)  # type: ignore[attr-defined]
    return "; ".join(
        ".".join([*map(str, one["loc"]), ""])[:-1] + ": " * bool(one["loc"]) + one["msg"]
        for one in problems
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it was made of."""
    found: BaseException | None = error
    for _ in range(_DEPTH_MAX):
        if found is None:
            return
        yield found
        source = getattr(found, "source", None)
        inner = source if isinstance(source, BaseException) else None
        found = inner or found.__cause__ or found.__context__


def _names(error: BaseException) -> set[str]:
    """``package.class`` of its class and all that it descends from."""
    return {f"{one.__module__.partition('.')[0]}.{one.__name__}" for one in type(error).__mro__}
