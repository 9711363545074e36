"""The setting ``notify``."""

from __future__ import annotations

from typing import Any

from relay.config.door import Setting
from relay.features.notify.notices import parse_notify


def _parsed(value: object) -> dict[str, Any] | None:
    return None if value in (None, False) else parse_notify(value)


#: All keys of relay.features.notify.notices; None: the person is not told.
NOTIFY = Setting[dict[str, Any] | None](
    "notify",
    "what you are told of while you look elsewhere; see docs/notifications.md",
    _parsed,
    None,
)
SETTINGS = (NOTIFY,)
