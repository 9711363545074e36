"""The forms in which a configuration says what a turn may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from relay.core.dispatch import HookResult, PermissionSet
from relay.core.errors import UsageError

FORM: dict[str, Any] = {
    "level": "restricted",
    "tools": {"allow": ["read"], "deny": ["read_secret"]},
}


def test_a_permission_set_is_the_same_as_an_object_and_as_a_dictionary() -> None:
    same = PermissionSet("restricted", tools={"allow": ["read"], "deny": ["read_secret"]})
    for given in (FORM, same, PermissionSet(**FORM)):
        assert HookResult.of({"fire": True, "permissions": given}).permissions == same
    assert PermissionSet.from_json(same.to_json()) == same  # as it is stored


@pytest.mark.parametrize(
    "written",
    [
        lambda: PermissionSet("restricted", allow=["read"]),
        lambda: PermissionSet("restricted", ["read"]),  # type: ignore[arg-type]
        lambda: PermissionSet("restricted", {"allowed": ["read"]}),
        lambda: HookResult.of({"fire": True, "permissions": {"level": "full", "deny": ["shell"]}}),
        lambda: HookResult.of({"fire": True, "permissions": "full"}),
    ],
)
def test_another_form_is_refused_with_the_right_one(written: Callable[[], object]) -> None:
    with pytest.raises(UsageError) as refused:
        written()
    assert '{"level": "restricted", "tools": {"allow": ["read"], "deny": []}' in refused.value.hint
