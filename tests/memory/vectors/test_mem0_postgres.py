"""What mem0 is told of PostgreSQL: where it is, and how long anything may take."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from relay.core.errors import error_fields
from relay.memory.backend import StoreUnavailable
from relay.memory.vectors import mem0_config
from relay.memory.vectors.mem0_points import open_mem0
from tests.memory.vectors.cheap import Cheap


def address(**section: Any) -> str:
    provider, config = mem0_config.store({"provider": "pgvector", **section}, "/unused", 8)
    assert provider == "pgvector" and not {"user", "password", "host"} & set(config)
    return str(config["connection_string"])


def test_a_password_may_hold_any_character() -> None:
    parts = urlsplit(address(host="db", port=5433, user="me", password="a/b@c:d?", dbname="mine"))
    assert (parts.username, parts.hostname, parts.port) == ("me", "db", 5433)
    assert parts.path == "/mine" and unquote(parts.password or "") == "a/b@c:d?"


@pytest.mark.parametrize("given", ["postgresql://me@db/mine", "postgresql://me@db/mine?sslmode=a"])
def test_nothing_waits_for_ever(given: str) -> None:
    query = parse_qs(urlsplit(address(connection_string=given)).query)
    assert (query["connect_timeout"], query["tcp_user_timeout"]) == (["10"], ["10000"])
    assert "sslmode" not in given or query["sslmode"] == ["a"]


def test_so_it_is_for_the_other_form_and_what_is_given_stays() -> None:
    told = address(connection_string="host=db connect_timeout=3").split()
    assert told == ["host=db", "connect_timeout=3", "tcp_user_timeout=10000"]


def test_the_server_is_named_without_the_password() -> None:
    section = {"host": "db", "user": "me", "password": "secret"}
    config = {"connection_string": address(**section)}
    assert mem0_config.server("pgvector", config) == "pgvector db:5432"


class OperationalError(Exception):
    """As psycopg's, by which relay knows that a server is away."""


def test_why_it_is_away_is_said_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[str] = []

    def connect(address: str) -> None:
        told.append(address)
        raise OperationalError("connection failed: FATAL: database is starting up")

    monkeypatch.setattr(OperationalError, "__module__", "psycopg")
    monkeypatch.setitem(sys.modules, "psycopg", SimpleNamespace(connect=connect))
    section = {"provider": "pgvector", "host": "db", "user": "me", "password": "secret-word"}
    with pytest.raises(StoreUnavailable) as caught:
        open_mem0({"vector_store": section}, str(tmp_path), Cheap())
    said = str(error_fields(caught.value))
    assert "pgvector db:5432" in said and "is starting up" in said and "secret-word" not in said
    assert len(told) == 1 and "secret-word" in told[0] and "connect_timeout=10" in told[0]
