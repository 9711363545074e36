"""One connection to the ledger's file: begin, write, commit, or roll back. One owner.

A file of its own: what is stored, and in which tables, is said in relay.ledger.store and beside it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from relay.core import sqlite
from relay.core.errors import StorageError
from relay.ledger.recovery import LedgerFile, set_aside
from relay.ledger.schema import SCHEMA


class Transactions:
    """The ledger's file, open for writing. Raises StorageError wherever SQLite fails.

    ``commit`` may run in another thread, while nothing else is called.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._untold = ""  # of what was done to the file: for the person, with the next commit
        self._open()

    def _open(self) -> None:
        self._db = sqlite.connect(self.path, SCHEMA)
        try:
            self._file = LedgerFile(self.path)
        except OSError as error:
            self._db.close()
            raise SCHEMA.error(error, self.path) from error
        try:
            with self.guard() as db:
                self._untold = self._file.missing(db) or self._untold
        except StorageError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; what was not committed is gone."""
        self._db.close()
        self._file.close()

    @contextmanager
    def guard(self) -> Iterator[sqlite3.Connection]:
        """The connection, with SQLite's errors turned into StorageError."""
        try:
            yield self._db
        except sqlite3.Error as error:
            raise SCHEMA.error(error, self.path) from error

    def rows(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        """What one statement finds."""
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise SCHEMA.error(error, self.path) from error

    def row(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        """The first row that one statement finds, or None."""
        try:
            return self._db.execute(sql, values).fetchone()
        except sqlite3.Error as error:
            raise SCHEMA.error(error, self.path) from error

    def change(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> int:
        """Run one statement. Returns how many rows it has changed."""
        try:
            return self._db.execute(sql, values).rowcount
        except sqlite3.Error as error:
            raise SCHEMA.error(error, self.path) from error

    # -- transactions

    def begin(self) -> None:
        """Start a transaction if none is open, in a file that has its name."""
        if not self._db.in_transaction:
            self._check()
            self.change("BEGIN IMMEDIATE")

    @property
    def in_transaction(self) -> bool:
        """Whether something waits for ``commit``."""
        return self._db.in_transaction

    def commit(self) -> None:
        """Put everything since ``begin`` on the disk, synchronously."""
        self.change("COMMIT")
        self._check()
        self._file.note()

    def _check(self) -> None:
        """Put the file back where it was removed. Raises StorageError where it cannot be."""
        if not self._file.check():
            self._file.put_back(self._db)
            self.close()
            self._open()
            self._untold = f"The ledger {self.path} was removed. It has been put back, as it was."

    def rollback(self) -> None:
        """Forget everything since the last commit. Never raises."""
        self._forget()
        if self._db.in_transaction:
            try:
                self._db.execute("ROLLBACK")
            except sqlite3.Error:
                # SQLite rolls back by itself after the errors that end up here.
                return

    @contextmanager
    def part(self) -> Iterator[None]:
        """What is written within is undone where it raises anything but StorageError."""
        nested = self._db.in_transaction
        if nested:
            self.change("SAVEPOINT part")
        try:
            yield
        except StorageError:
            raise
        except BaseException:
            if nested:
                self.change("ROLLBACK TO part")
                self.change("RELEASE part")
                self._forget()
            else:
                self.rollback()
            raise
        if nested:
            self.change("RELEASE part")

    def _forget(self) -> None:
        """What is kept of this transaction's rows is not so."""

    def checkpoint(self) -> None:
        """Move the log into the main file. A log that cannot be moved now stays where it is."""
        self.row("PRAGMA wal_checkpoint(TRUNCATE)")
        self._file.note()

    def put_in_order(self) -> str:
        """Set the damaged file aside and begin anew. Returns what to tell the person. Raises
        StorageError."""
        self.close()
        told = set_aside(self.path)
        self._open()
        return told
