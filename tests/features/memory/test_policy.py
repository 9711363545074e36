"""Secrets in what is to be remembered: masked, refused or kept."""

from __future__ import annotations

import pytest

from relay.core.errors import UsageError
from relay.features.memory.rules import Secrets, clean_meta, clean_text

TOKEN = "ghp_" + "Ab3dE5gH" * 4 + "1jK2"


def test_a_secret_is_masked_in_the_text_and_anywhere_in_the_meta() -> None:
    text = clean_text(f"The token is {TOKEN}, for CI", Secrets.REDACT)
    assert text.startswith("The token is ghp_****") and text.endswith("*, for CI")
    meta = clean_meta({"deep": [{"a": TOKEN}], "plain": 3, TOKEN: None}, Secrets.REDACT)
    assert meta is not None and meta["plain"] == 3 and TOKEN not in repr(meta)
    assert clean_meta(None, Secrets.REDACT) is None


def test_a_secret_is_refused_without_being_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        clean_text(f"The token is {TOKEN}", Secrets.REFUSE)
    assert caught.value.code == "secret" and TOKEN not in str(caught.value)
    with pytest.raises(UsageError):
        clean_meta({TOKEN: 1}, Secrets.REFUSE)
    assert clean_text("The token is in the vault", Secrets.REFUSE) == "The token is in the vault"


def test_a_secret_that_is_to_be_kept_stays() -> None:
    assert TOKEN in clean_text(f"The token is {TOKEN}", Secrets.KEEP)
