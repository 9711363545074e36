"""Secrets in what is to be remembered: masked, refused or kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from relay.core.errors import UsageError
from relay.memory.local.store import LocalStore
from relay.memory.policy import Guarded, Secrets
from relay.memory.records import Outcome, Place, Restored, Scope

TOKEN = "ghp_" + "Ab3dE5gH" * 4 + "1jK2"
USER = Place(Scope.USER)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(str(tmp_path))
    yield store
    store.close()


def save(backend: Guarded, text: str, **more: object) -> str:
    meta = dict(more) or None
    return backend.save(text, USER, agent=None, session=None, meta=meta, now_ms=1).memory.text


def test_redacted_it_is_in_no_file(store: LocalStore, tmp_path: Path) -> None:
    guarded = Guarded(store, Secrets.REDACT)
    text = save(guarded, f"The token is {TOKEN}, for CI", deep=[{"a": TOKEN}], plain=3)
    assert text.startswith("The token is ghp_****") and text.endswith("*, for CI")
    assert guarded.list([USER], 1)[0].meta["plain"] == 3
    assert all(TOKEN.encode() not in file.read_bytes() for file in tmp_path.iterdir())


def test_refused_it_is_not_saved(store: LocalStore) -> None:
    guarded = Guarded(store, Secrets.REFUSE)
    with pytest.raises(UsageError) as caught:
        save(guarded, f"The token is {TOKEN}")
    assert caught.value.code == "secret" and TOKEN not in str(caught.value)
    with pytest.raises(UsageError):
        save(guarded, "The token is in meta", **{TOKEN: 1})
    assert guarded.list([USER], 1) == []
    assert save(guarded, "The token is in the vault") == "The token is in the vault"


def test_kept_it_stays(store: LocalStore) -> None:
    assert TOKEN in save(Guarded(store, Secrets.KEEP), f"The token is {TOKEN}")


def test_what_is_restored_is_cleaned_too(store: LocalStore) -> None:
    guarded = Guarded(store, Secrets.REDACT)
    first = guarded.save("x", USER, agent=None, session=None, now_ms=1)
    assert first.outcome is Outcome.NEW
    dirty = replace(first.memory, id="abc", text=f"The token is {TOKEN}")
    assert guarded.restore([dirty]) == Restored(new=1)
    assert TOKEN not in guarded.get("abc").text
    assert guarded.restore([dirty]) == Restored(same=1)
    with pytest.raises(UsageError) as caught:
        Guarded(store, Secrets.REFUSE).restore([replace(dirty, id="def")])
    assert "def" in caught.value.message
