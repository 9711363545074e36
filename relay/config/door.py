"""The settings' door: a feature's keys of ``config = {…}``.

A feature's module ``settings`` has ``SETTINGS``, a tuple of ``Setting``. It is imported only where
a configuration may have one of its keys, and imports nothing large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from relay.core.features import modules

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Setting(Generic[T]):
    """One key, and the value that it gives. A subclass may say more of its values."""

    key: str
    #: What it holds, for the documentation.
    doc: str
    #: The value of what a person wrote. Raises ConfigError.
    parse: Callable[[object], T]
    #: What counts where nothing is said.
    default: T
    #: ``key = {…}`` at the top of a file says the same.
    at_top: bool = False
    #: It counts in the person's own file alone.
    own_only: bool = False

    def of_file(self, value: T, path: str, sha256: str) -> T:
        """``value``, as the file ``path`` says it."""
        return value

    def kept(self, value: T) -> Any:
        """The value in the manifest of its file: a table of JSON, or None."""
        return value

    def summary(self, kept: Any) -> Any:
        """What ``relay trust`` shows of it: a list of texts, or a table; None: nothing. ``kept`` is
        None where the file does not say it."""
        return None

    def shown(self, value: T) -> Any:
        """What ``relay config show`` shows of it, as JSON; None: nothing."""
        return None

    def warnings(self, value: T, environ: Mapping[str, str]) -> list[str]:
        """What is allowed, but cannot work here or looks like a mistake."""
        return []


def settings() -> Iterator[Setting[Any]]:
    """Those of all features."""
    for module in modules("settings"):
        yield from getattr(module.module, "SETTINGS", ())


def problems() -> list[str]:
    """Why settings of features could not be loaded, a line each."""
    return [module.problem for module in modules("settings") if module.problem]
