"""Every way in which a store may fail becomes an error that says what to do."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from relay.core.errors import ConfigError, NotFound, RelayError, StorageError
from relay.memory.backend import StoreUnavailable
from relay.memory.embedding import EmbedderUnavailable
from relay.memory.vectors.faults import mapped, reason, translated
from relay.memory.vectors.mem0_points import load

SERVER = "http://db.test:6333"


def answered(status: int, body: bytes = b"no") -> UnexpectedResponse:
    return UnexpectedResponse(status, "Reason", body, httpx.Headers())


def made(module: str, name: str, base: type[Exception] = Exception) -> Exception:
    """An error of a package that is not installed here."""
    error: Exception = type(name, (base,), {"__module__": module})("it said so")
    return error


@pytest.mark.parametrize(
    "error",
    [
        ResponseHandlingException(httpx.ConnectError("[Errno 111] Connection refused")),
        ResponseHandlingException(httpx.ReadTimeout("timed out")),
        httpx.RemoteProtocolError("closed"),
        ResourceExhaustedResponse("slow down", 3),
        made("grpc", "RpcError"),
        ConnectionResetError("reset"),
        TimeoutError("too late"),
        *(answered(status) for status in (429, 500, 502, 503, 504)),
        made("openai", "APIConnectionError"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_server_that_is_away(error: Exception) -> None:
    with pytest.raises(StoreUnavailable) as caught, mapped(SERVER):
        raise error
    assert SERVER in caught.value.message and caught.value.hint
    assert not caught.value.message.rstrip().endswith(":")


def test_what_wraps_the_reason_does_not_hide_it() -> None:
    inner = ConnectionRefusedError(111, "Connection refused")
    outer = made("mem0.exceptions", "VectorStoreError")
    outer.__cause__ = inner
    found = translated(outer, SERVER)
    assert type(found) is StoreUnavailable and "refused" in found.message


@pytest.mark.parametrize(
    "error",
    [answered(401), answered(403), made("mem0.exceptions", "AuthenticationError")],
    ids=lambda error: str(getattr(error, "status_code", "mem0")),
)
def test_a_key_that_is_refused(error: Exception) -> None:
    found = translated(error, SERVER)
    assert type(found) is ConfigError and SERVER in found.message and "api_key" in found.hint


@pytest.mark.parametrize(
    "said",
    ["expected dim: 384: wrong input: Vector dimension error", "different vector dimensions"],
)
def test_vectors_of_another_length(said: str) -> None:
    for error in (answered(400, said.encode()), ValueError(said)):
        found = translated(error, SERVER)
        assert type(found) is ConfigError and "collection_name" in found.hint


def test_a_collection_that_was_removed() -> None:
    found = translated(answered(404, b"Not found: Collection `relay` doesn't exist!"), SERVER)
    assert type(found) is StorageError and "broker stop" in found.hint


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError(), OSError(28, "No space left")])
def test_anything_else_is_an_error_of_the_store(error: Exception) -> None:
    found = translated(error, "")
    assert type(found) is StorageError and found.hint
    assert type(error).__name__ in found.message or str(error) in found.message


def test_secrets_and_novels_stay_out_of_the_message() -> None:
    key = "sk-" + "a1B2" * 12
    found = translated(RuntimeError(f"bad {key}\n" + "x " * 5000), SERVER)
    assert key not in found.message and len(found.message) < 500 and "\n" not in found.message


def test_a_configuration_that_pydantic_refuses_is_not_repeated(tmp_path: Path) -> None:
    load(str(tmp_path))
    from mem0.configs.vector_stores.qdrant import QdrantConfig

    given = {"path": "/x", "api_key": "plain-and-secret", "port": "none", "nonsense": 1}
    for config in (given, {**given, "nonsense": None} | {"port": ["plain-and-secret"]}):
        config = {key: value for key, value in config.items() if value is not None}
        with pytest.raises(ValueError) as caught:
            QdrantConfig(**config)
        said = reason(caught.value)
        assert "secret" not in said and ("nonsense" in said or "port" in said)


def test_errors_of_relay_stay_what_they_are() -> None:
    error = NotFound("no")
    with pytest.raises(RelayError) as caught, mapped(SERVER):
        raise error
    assert caught.value is error
    with pytest.raises(StoreUnavailable) as away, mapped(SERVER):
        raise EmbedderUnavailable("no model", hint="pull it")
    assert "no model" in away.value.message and away.value.hint == "pull it"


def test_who_breaks_it_off_is_not_held_up() -> None:
    with pytest.raises(KeyboardInterrupt), mapped(SERVER):
        raise KeyboardInterrupt
