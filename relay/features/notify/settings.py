"""The setting ``notify``: of what the person is told while they look elsewhere, and how."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from relay.config.door import Setting
from relay.core.errors import ConfigError, did_you_mean

#: What there is to be told of: mail in the inbox, what waits for the person, an agent that ended,
#: one whose model does not answer at present (a usage limit).
KINDS = ("mail", "dialog", "ended", "limited")
_QUIET = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
#: The keys, with what counts where nothing is said.
DEFAULTS: dict[str, Any] = {
    "desktop": True,
    "bell": True,
    "webhook": "",
    "of": list(KINDS),
    "quiet": "",
}


def parse_notify(value: object) -> dict[str, Any]:
    """``notify: {…}``, checked and with all its keys; True stands for the defaults. Raises
    ConfigError."""
    if value is True:
        return dict(DEFAULTS)
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"notify must be True or a dictionary, not {value!r}", hint='write {"desktop": True}'
        )
    for key in value:
        if key not in DEFAULTS:
            raise ConfigError(
                f"unknown key {key!r} in notify", hint=did_you_mean(str(key)[:80], DEFAULTS)
            )
    settings = {**DEFAULTS, **value}
    for key in ("desktop", "bell"):
        if not isinstance(settings[key], bool):
            raise ConfigError(f"notify: {key} must be True or False, not {settings[key]!r}")
    kinds = settings["of"]
    if not isinstance(kinds, list | tuple) or not set(kinds) <= set(KINDS):
        raise ConfigError(f"notify: of must be a list of {', '.join(KINDS)}, not {kinds!r}")
    settings["of"] = list(kinds)
    quiet = settings["quiet"]
    if not isinstance(quiet, str) or (quiet and not _quiet_minutes(quiet)):
        raise ConfigError(
            f"notify: quiet must be a span of local time such as '22:00-07:00', not {quiet!r}"
        )
    url = settings["webhook"]
    if not isinstance(url, str) or (url and not _is_address(url)):
        raise ConfigError(
            "notify: webhook is not an address", hint='write "https://…": it gets a POST with JSON'
        )
    return settings


def _quiet_minutes(text: str) -> tuple[int, int] | None:
    """``22:00-07:00`` as minutes of the day; None for anything else."""
    match = _QUIET.fullmatch(text)
    if match is None:
        return None
    hours = [int(part) for part in match.groups()]
    return hours[0] * 60 + hours[1], hours[2] * 60 + hours[3]


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and url.isascii()


def is_quiet(quiet: str, minute: int) -> bool:
    """Whether ``minute`` of the day lies in the quiet hours ``quiet``; they may span midnight."""
    hours = _quiet_minutes(quiet)
    if hours is None:
        return False
    begin, end = hours
    return begin <= minute < end if begin <= end else minute >= begin or minute < end


def _parsed(value: object) -> dict[str, Any] | None:
    return None if value in (None, False) else parse_notify(value)


class _Notify(Setting[dict[str, Any] | None]):
    def summary(self, kept: Any) -> list[str]:
        if kept is None:
            return []
        found = [name for name in ("desktop", "bell") if kept[name]]
        found += [f"webhook {urlsplit(kept['webhook']).hostname}"] if kept["webhook"] else []
        found += [f"of {' '.join(kept['of'])}"] if kept["of"] != DEFAULTS["of"] else []
        return found + ([f"quiet {kept['quiet']}"] if kept["quiet"] else [])


#: All keys of DEFAULTS; None: the person is not told.
NOTIFY = _Notify(
    "notify",
    "what you are told of while you look elsewhere; only your own file's counts;"
    " see docs/notifications.md",
    _parsed,
    None,
    own_only=True,
)
SETTINGS = (NOTIFY,)
