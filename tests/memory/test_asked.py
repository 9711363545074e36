"""The fields of a request to the memory."""

from __future__ import annotations

import pytest

from relay.core.errors import UsageError
from relay.memory.asked import Asked


def test_a_scope_that_does_not_exist_is_named_with_what_was_meant() -> None:
    with pytest.raises(UsageError, match="there is no scope 'usr'") as caught:
        Asked({"scope": "usr"}, "Ada", "run-1", 0).place()
    assert caught.value.hint == "did you mean 'user'?"
