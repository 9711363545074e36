"""The command line's door: what a feature adds to verbs of relay's own.

A feature's verbs stand in ``VERBS`` of its package. Its module ``status_lines``, light,
has ``status_lines(home, cwd)``: lines of ``relay status`` as ``checks`` has them. Its module
``cli`` may have any of these:

``checks(home, cwd)``
    Lines of ``relay doctor``: (level, text, hint), the level being ok, warn or absent.
``INIT``
    Options of ``relay init``: name -> (help, function of the options that returns the status).
``NAMES``
    Names that a shell completes (``offers`` of an argument): word -> function that returns them.
``examine_file(file)``
    A ``FileOfFeature`` for a file of the feature's that a person may trust; None: it is none.
``event_lines(event)``
    Lines of ``relay show``: (name, text).
``add_parts(name, group)``
    Declares more verbs of ``name``: ``broker``, ``hooks`` or ``ledger``.
``hooks_elsewhere(home, cwd)``
    What ``relay hooks list`` shows beside the hooks of a session: rows for ``--json``, and the head
    and the cells of a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from relay.config.trust import ConfigFile
from relay.core.features import modules


@dataclass(frozen=True, slots=True)
class FileOfFeature:
    """A file that a person may trust, and that is no Python."""

    #: What it would run, a line each.
    runs: list[str]
    #: The hashes of the programs beside it that it names, by path.
    programs: dict[str, str]
    #: How much of what is in it, for ``relay config check``.
    counts: dict[str, int] = field(default_factory=dict)


def given(name: str) -> Iterator[tuple[str, Any]]:
    """What each feature's module ``cli`` has under this name, with the feature's name."""
    for module in modules("cli"):
        if hasattr(module.module, name):
            yield module.feature.name, getattr(module.module, name)


def tables(name: str) -> dict[str, Any]:
    """The tables of all features under this name, as one."""
    table: dict[str, Any] = {}
    for _, rows in given(name):
        table |= {key: row for key, row in rows.items() if key not in table}
    return table


def file_of_feature(file: ConfigFile) -> FileOfFeature | None:
    """What a feature says of a file that is its own. Raises RelayError."""
    for _, examine in given("examine_file"):
        seen: FileOfFeature | None = examine(file)
        if seen is not None:
            return seen
    return None
