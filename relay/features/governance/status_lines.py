"""What governance says in ``relay status``: see relay.cli.door."""

from __future__ import annotations

from relay.features.governance.governed_paths import governed_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relay.core.paths import Home


def status_lines(home: Home, cwd: str) -> list[tuple[str, str, str]]:
    """What `relay govern` says, where something is governed."""
    if not governed_root(cwd):
        return []
    from relay.features.governance.govern_verbs import what_holds  # which imports much

    return what_holds(home, cwd)
