"""Content that is not text: files beside the ledger, each named by the hash of what is in it.

Whoever brings an event stores its files; the broker stores only their rows.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

from relay.core.errors import StorageError, UsageError
from relay.core.files import make_private_folder, read_file, sync_folder, write_atomically
from relay.core.paths import Home

#: Bytes of one file.
CONTENT_MAX = 16 * 1024 * 1024


def read(path: str) -> bytes:
    """What is in a file that the person names. Raises UsageError."""
    try:
        return read_file(path, CONTENT_MAX)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def stored(home: Home, name: str, data: bytes, content_type: str = "") -> dict[str, Any]:
    """Put ``data`` on the disk; how an event names it. Raises UsageError, StorageError."""
    import mimetypes  # it reads several files of the system's

    return {
        "sha256": store(home, data),
        "size": len(data),
        "name": name[-255:],
        "content_type": content_type or mimetypes.guess_type(name)[0] or "application/octet-stream",
    }


def store(home: Home, data: bytes) -> str:
    """Put ``data`` on the disk; its hash. Raises UsageError for too much, StorageError."""
    if len(data) > CONTENT_MAX:
        raise UsageError(
            f"the content has {len(data)} bytes; the limit is {CONTENT_MAX}",
            hint="put it where its reader finds it, and name that place in the text",
            code="too_large",
        )
    sha256 = hashlib.sha256(data).hexdigest()
    path = path_of(home, sha256)
    folder = os.path.dirname(path)
    try:
        if not os.path.exists(path):
            make_private_folder(folder)
            write_atomically(path, data)
            sync_folder(os.path.dirname(folder))
    except OSError as error:
        raise StorageError(
            f"the content cannot be stored in {folder}: {error.strerror}",
            hint="free some space on that disk; nothing was stored",
        ) from error
    return sha256


def path_of(home: Home, sha256: str) -> str:
    return os.path.join(home.content, sha256[:2], sha256)
