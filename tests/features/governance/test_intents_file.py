"""The file of a project's intents: read as it is now, changed in place."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest

from relay.core.errors import NotFound, RelayError
from relay.features.governance.governed_paths import FOLDER
from relay.features.governance.intents import FILE_MAX, INTENTS_FILE, IntentsError, Status
from relay.features.governance.orchestration import IntentsFile

NOTE = "# what you have allowed always: relay answer ID always"
REST = "\n  id: A\n  status: PENDING\n  name: n\n  owned_scope: []\n"
TEXT = "active_intents:\n" + "".join(
    f"- {{id: I{n}, name: n, status: PENDING, owned_scope: [src]}} # {n}\n" for n in range(8)
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / FOLDER).mkdir()
    path = tmp_path / FOLDER / INTENTS_FILE
    path.write_text(TEXT)
    return path


def test_what_a_person_saves_holds_at_once(path: Path, tmp_path: Path) -> None:
    file = IntentsFile(str(tmp_path))
    assert list(file.read().intents) == [f"I{n}" for n in range(8)]
    assert file.read() is file.read()  # parsed once
    stamp = path.stat().st_mtime_ns
    path.write_text(TEXT.replace("I0", "J0"))
    os.utime(path, ns=(stamp, stamp))  # as long, and as old
    assert "J0" in file.read().intents
    path.write_text("active_intents: 3")
    for _ in range(2):
        with pytest.raises(IntentsError, match="line 1"):
            file.read()
    path.write_text(TEXT)
    assert len(file.read().intents) == 8


@pytest.mark.parametrize(
    "text",
    [
        "- id: A # a\r\n  name: n\r\n  status: PENDING # s\r\n"
        '<  always_allow: NOTE\r\n    - "a \\"b\\""\r\n>  owned_scope: [src]\r\n# end',
        "  - id: A\n    name: n\n    owned_scope: [a]\n    status: PENDING"
        '<\n    always_allow: NOTE\n      - "a \\"b\\""\n>',
        '  [{id: A, status: PENDING<, always_allow: ["a \\"b\\""]>, owned_scope: [a], name: n}]',
        '- always_allow: [x<, "a \\"b\\"">] # cREST',
        '- always_allow: [<"a \\"b\\"">]REST',
        '- always_allow:< ["a \\"b\\""]>REST',
        '- always_allow:\n  # why\n  - x # y\n<  - "a \\"b\\""\n>  # endREST',
    ],
    ids=["block", "last line", "flow", "flow list", "empty", "nothing", "block list"],
)
def test_what_is_allowed_always_is_added_and_all_else_stays(
    path: Path, tmp_path: Path, text: str
) -> None:
    """Between < and > stands what is added."""
    text = f"active_intents:\n{text}".replace("NOTE", NOTE).replace("REST", REST)
    path.write_bytes(re.sub("(?s)<.*>", "", text).encode())
    for _ in range(2):
        IntentsFile(str(tmp_path)).allow_always("A", 'a "b"')
        assert path.read_bytes().decode() == re.sub("[<>]", "", text)


def test_where_a_call_cannot_be_added_nothing_is_written(path: Path, tmp_path: Path) -> None:
    text = TEXT.replace("PENDING, ", "PENDING, always_allow: [" + "a, " * 99 + "b], ", 1)
    path.write_text(text)
    with pytest.raises(IntentsError, match="cannot be added here: c"):
        IntentsFile(str(tmp_path)).allow_always("I0", "c")
    with pytest.raises(NotFound):
        IntentsFile(str(tmp_path)).allow_always("J0", "c")
    assert path.read_text() == text


def test_a_file_that_cannot_be_read_says_why(path: Path, tmp_path: Path) -> None:
    file = IntentsFile(str(tmp_path))
    path.write_bytes(b"# a\n# \xff\n")
    with pytest.raises(IntentsError, match="line 2: this is not UTF-8"):
        file.read()
    path.write_bytes(b"#" * (FILE_MAX + 1))
    with pytest.raises(IntentsError, match="more than"):
        file.read()
    path.unlink()
    with pytest.raises(IntentsError, match="not there") as caught:
        file.read()
    assert caught.value.hint == "relay init --governed writes one to begin with"
    os.mkfifo(path)
    with pytest.raises(IntentsError, match="not a file"):
        file.read()
    path.unlink()
    (tmp_path / "elsewhere").write_text(TEXT)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IntentsError, match="is a link"):
        file.read()
    with pytest.raises(IntentsError, match="is a link"):
        file.set_status("I1", Status.COMPLETE)
    path.unlink()
    path.parent.rmdir()
    path.parent.symlink_to(tmp_path)
    with pytest.raises(IntentsError, match="not a folder"):
        file.read()
    path.parent.unlink()
    with pytest.raises(IntentsError, match="not there"):
        file.read()


def test_a_status_is_changed_in_place(path: Path, tmp_path: Path) -> None:
    path.chmod(0o640)
    file = IntentsFile(str(tmp_path))
    changed = file.set_status("I3", Status.IN_PROGRESS, only_from=(Status.PENDING,))
    assert changed.status is Status.IN_PROGRESS
    lines = TEXT.splitlines()
    lines[4] = lines[4].replace("PENDING", "IN_PROGRESS")
    assert path.read_text().splitlines() == lines
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(path.parent) == [INTENTS_FILE]
    assert file.set_status("I3", Status.IN_PROGRESS, only_from=()).id == "I3"  # it is
    with pytest.raises(RelayError, match="I3 is IN_PROGRESS") as caught:
        file.set_status("I3", Status.BLOCKED, only_from=(Status.PENDING,))
    assert caught.value.code == "intent_status"
    with pytest.raises(NotFound, match="valid ids: I0"):
        file.set_status("I9", Status.BLOCKED)


def test_changes_at_the_same_time_all_hold(path: Path, tmp_path: Path) -> None:
    threads = [
        threading.Thread(target=IntentsFile(str(tmp_path)).set_status, args=(f"I{n}", "COMPLETE"))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert path.read_text() == TEXT.replace("PENDING", "COMPLETE")
