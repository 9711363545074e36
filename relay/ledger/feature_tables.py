"""The tables of features that bring their own: see docs/extending.md.

The ledger knows how many of a feature's migrations it has. They stay when the feature is removed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from relay.core.errors import RelayError
from relay.ledger.store import Ledger

#: What the statements themselves can be blamed for; anything else is the file's fault.
_MISTAKES = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH)


def migrate(ledger: Ledger, feature: str, migrations: Sequence[Sequence[str]]) -> None:
    """Bring a feature's tables to the newest version, each migration in a transaction of its own.

    Raises RelayError where the migrations are wrong, and StorageError where the file is; the
    ledger is then as the last good migration left it."""
    row = ledger.row("SELECT version FROM feature_tables WHERE feature=?", (feature,))
    version = row[0] if row else 0
    if version > len(migrations):
        raise RelayError(
            f"its tables are of version {version}, and it knows {len(migrations)}",
            hint="install the newer version of its package again",
        )
    for number in range(version + 1, len(migrations) + 1):
        try:
            _apply(ledger, feature, number, migrations[number - 1])
        except RelayError:
            ledger.rollback()
            raise


def _apply(ledger: Ledger, feature: str, number: int, statements: Sequence[str]) -> None:
    ledger.begin()
    before = _names(ledger)
    with ledger.guard() as db:
        for statement in statements:
            try:
                db.execute(statement)
            except sqlite3.Error as error:
                if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _MISTAKES:
                    raise RelayError(f"its migration {number} fails: {error}") from error
                raise
    prefix = f"{feature.replace('-', '_')}_".lower()
    foreign = sorted(name for name in before ^ _names(ledger) if not name.startswith(prefix))
    if not ledger.in_transaction:
        raise RelayError(f"its migration {number} ends the transaction that it is in")
    if foreign:
        raise RelayError(
            f"its migration {number} makes or drops {', '.join(foreign)}",
            hint=f"the names of its tables and indexes begin with {prefix}",
        )
    ledger.change("INSERT OR REPLACE INTO feature_tables VALUES (?,?)", (feature, number))
    ledger.commit()


def _names(ledger: Ledger) -> set[str]:
    rows = ledger.rows("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
    return {row[0].lower() for row in rows}
