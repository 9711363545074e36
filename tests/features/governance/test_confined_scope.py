"""What a confined program may write for an intent: globs become folders and files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relay.core.errors import RelayError
from relay.features.governance.confined_scope import places, scope_of
from relay.features.governance.intents import Intent, IntentsError, Status

NOTHING_NEW = "nothing new can be made in"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with a nested repository, links, and a file that a scope may keep out."""
    for name in (".orchestration", ".git", "docs", "src/a/.git", "src/a/x", "src/b", "web"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("README.md", "src/keys.py", "src/b/m.py", "src/b/keys.py", "web/.mcp.json"):
        (tmp_path / name).write_text("")
    (tmp_path / "web" / "index.html").write_text("")
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "near").symlink_to("docs")
    (tmp_path / "src" / "b" / "link").symlink_to("../../docs")
    return tmp_path


@pytest.mark.parametrize(
    ("globs", "allowed", "noted"),
    [
        (["docs/**"], ["docs"], ""),
        (["docs"], ["docs"], ""),
        (["README.md"], ["README.md"], ""),
        (["src/b/*.py"], ["src/b"], "all of src/b can be written"),
        (["src/**/*.py"], ["src/a/x", "src/b", "src/keys.py"], NOTHING_NEW),
        (["src/**", "!src/keys.py"], ["src/a/x", "src/b"], f"{NOTHING_NEW} src itself"),
        (["src/b/**", "!**/keys.py"], ["src/b/m.py"], f"{NOTHING_NEW} src/b itself"),
        (["src/b/**", "!src/b/none.py"], ["src/b"], ""),
        (["web"], ["web/index.html"], f"{NOTHING_NEW} web itself"),
        (["*/b/**"], ["src/b"], ""),
        (["*.md"], ["README.md"], "at the top of the project no new files"),
        (["near/**"], ["docs"], ""),
        (["docs", "out/**"], ["docs"], "leads out of the project"),
        (["docs", "docs/new/**"], ["docs"], "docs/new is not there yet"),
        (["docs", "README.md/**"], ["docs"], "README.md is a file"),
        (["docs", ".git/**"], ["docs"], ".git is written by no agent"),
        (
            ["**"],
            ["README.md", "docs", "src/a/x", "src/b", "src/keys.py", "web/index.html"],
            "the scope means the whole project",
        ),
    ],
)
def test_a_glob_is_what_it_can_mean(
    root: Path, globs: list[str], allowed: list[str], noted: str
) -> None:
    found, notes = places(str(root), Intent("I", "n", Status.IN_PROGRESS, tuple(globs)))
    assert sorted(os.path.relpath(place, root) for place in found) == allowed
    assert any(noted in note for note in notes) if noted else notes == []


@pytest.mark.parametrize(
    "globs", [["none/**"], ["README.md/**"], ["out/etc"], [".git"], ["*/none"], ["!src"]]
)
def test_a_scope_of_nothing_that_is_there_is_a_sentence(root: Path, globs: list[str]) -> None:
    with pytest.raises(RelayError, match="nothing of what intent I allows can be written: ."):
        places(str(root), Intent("I", "n", Status.IN_PROGRESS, tuple(globs)))


def test_only_an_intent_in_progress_opens_anything(root: Path) -> None:
    path = root / ".orchestration" / "active_intents.yaml"
    entry = "{id: INT-1, name: n, status: PENDING, owned_scope: [docs]}"
    path.write_text(f"active_intents: [{entry}]\n")
    with pytest.raises(RelayError, match="is PENDING, so nobody writes for it"):
        scope_of("INT-1", str(root / "src"))
    path.write_text(f"active_intents: [{entry.replace('PENDING', 'IN_PROGRESS')}]\n")
    assert scope_of("INT-1", str(root / "src")) == ([str(root / "docs")], [])
    with pytest.raises(RelayError, match="valid ids: INT-1"):
        scope_of("INT-2", str(root))
    path.write_text("x")
    with pytest.raises(IntentsError):
        scope_of("INT-1", str(root))
