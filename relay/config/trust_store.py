"""The store of trust: one private file with what the person trusted, and where.

A store that is there and cannot be read is not an empty one: it may have held a guard. It is
imported before ``relay wrap`` starts the agent, so it imports only ``os`` at first.
"""

from __future__ import annotations

import os
import stat

from relay.core import json_text
from relay.core.errors import RelayError
from relay.core.files import open_private, take_lock, write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from typing import Any

    from relay.core.paths import Home

#: The store is not read beyond this. In bytes.
_STORE_MAX = 16 * 1024 * 1024
#: How long another process may hold the store, in seconds.
LOCK_TIMEOUT = 2.0


class TrustEntry:
    """What the person trusted at one place."""

    __slots__ = ("sha256", "programs", "search", "via")

    def __init__(
        self, sha256: str, programs: Mapping[str, str] | None, search: str, via: str = ""
    ) -> None:
        self.sha256 = sha256
        #: The hash of each file that its commands run, by path. None: a relay that knew of none
        #: has kept this entry.
        self.programs = programs
        #: The person's PATH at that time, without what is relative or the agent's.
        self.search = search
        #: From which terminal, by which process.
        self.via = via


class TrustStore:
    """What the store's file says."""

    __slots__ = ("entries", "problem", "revoked")

    def __init__(
        self, entries: dict[str, TrustEntry], revoked: dict[str, str], problem: str = ""
    ) -> None:
        #: What was trusted, by place.
        self.entries = entries
        #: From where the trust in a place was taken back.
        self.revoked = revoked
        #: Why the file cannot be read, after its name: "is damaged"; "" when it could be.
        self.problem = problem

    def check(self) -> None:
        """Raises RelayError when the file could not be read."""
        if self.problem:
            raise RelayError(
                f"the file of what you trusted {self.problem}",
                hint="put it back, or trust again what is to run: relay trust FILE",
                code="trust_store",
            )


def read_store(home: Home) -> TrustStore:
    """The store; empty when there is none, with a problem when it cannot be read."""
    try:
        fd = open_private(home.trust, os.O_RDONLY | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return TrustStore({}, {}, "is not a file")
            if status.st_uid != os.getuid() or status.st_mode & 0o022:
                return TrustStore({}, {}, "can be written by others")
            content: Any = json_text.loads(file.read(_STORE_MAX).decode())
    except FileNotFoundError:
        return TrustStore({}, {})
    except OSError as error:
        return TrustStore({}, {}, f"cannot be read ({error.strerror})")
    except (ValueError, RecursionError):
        return TrustStore({}, {}, "is damaged")
    table = content.get("trusted") if isinstance(content, dict) else None
    if not isinstance(table, dict):
        return TrustStore({}, {}, "is damaged")
    revoked = content.get("revoked")
    return TrustStore(
        {path: _entry(found) for path, found in table.items()},
        {path: str(via) for path, via in revoked.items()} if isinstance(revoked, dict) else {},
    )


def _entry(found: Any) -> TrustEntry:
    """One entry. What cannot be read is of a file that has changed: no file has its hash."""
    if not isinstance(found, dict):
        return TrustEntry("", None, "")
    sha256, programs, search = found.get("sha256"), found.get("programs"), found.get("search")
    if not isinstance(sha256, str) or not isinstance(search, str):
        return TrustEntry("", None, "")
    texts = isinstance(programs, dict) and all(isinstance(one, str) for one in programs.values())
    return TrustEntry(sha256, programs if texts else None, search, str(found.get("via") or ""))


def write_store(home: Home, store: TrustStore) -> None:
    """Replace the store as a whole, durably, mode 0600. One that could not be read is kept beside
    it. Raises RelayError when it cannot be written.
    """
    table = {
        path: {name: getattr(one, name) for name in TrustEntry.__slots__}
        for path, one in store.entries.items()
    }
    record = {"version": 2, "trusted": table, "revoked": store.revoked}
    try:
        if store.problem:
            os.link(home.trust, _set_aside(home))  # not moved: a kill must not lose it
        write_atomically(home.trust, json_text.dumps(record))
    except OSError as error:
        raise RelayError(
            f"cannot write {home.trust}: {error.strerror}",
            hint="free some space, or make the state directory writable",
            code="state_dir",
        ) from None


def set_aside_notice(home: Home) -> list[str]:
    """What is to be said when the store is written, if it cannot be read now."""
    if not (problem := read_store(home).problem):
        return []
    return [
        f"{home.trust} {problem}: it is kept as {_set_aside(home)}, and a new one begins. Trust"
        " again all else that is to run and to guard; until then it does not"
    ]


def _set_aside(home: Home) -> str:
    """Where a store that cannot be read is kept: a name that nothing has yet."""
    name, number = home.trust + ".damaged", 1
    while os.path.lexists(name):
        number += 1
        name = f"{home.trust}.damaged-{number}"
    return name


def locked(home: Home) -> AbstractContextManager[None]:
    """Hold the store's lock. Raises RelayError when another process keeps it too long."""
    import contextlib

    @contextlib.contextmanager
    def held() -> Iterator[None]:
        fd = take_lock(home.trust + ".lock", LOCK_TIMEOUT)
        if fd is None:
            raise RelayError(f"another process holds {home.trust}", hint="try again")
        try:
            yield
        finally:
            os.close(fd)

    return held()
