"""What is relay's is its owner's alone: refused or mended, by whatever others put in its way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relay.core import files
from relay.core.errors import RelayError
from relay.core.paths import Home

NOBODY = 65534

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root makes files of others")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(str(tmp_path / "relay"))
    assert made.create() == [] == made.opened()
    return made


def refused(home: Home) -> str:
    """Why it is not used, the same in ``relay doctor``'s words."""
    with pytest.raises(RelayError) as told:
        home.create()
    assert told.value.code == "not_private"
    with pytest.raises(RelayError, match="relay does not use it"):
        home.opened()
    return told.value.message


@as_root
@pytest.mark.parametrize("which", ["root", "names", "logs", "run"])
def test_a_folder_that_somebody_else_has_made_is_not_used(home: Home, which: str) -> None:
    path = getattr(home, which)
    os.chown(path, NOBODY, NOBODY)
    assert refused(home) == f"{path} belongs to another user, so relay does not use it"


@as_root
@pytest.mark.parametrize("which", ["ledger", "trust", "governance", "broker_lock", "broker_log"])
def test_a_file_of_another_user_is_not_used(home: Home, which: str) -> None:
    path = Path(getattr(home, which))
    path.write_text("planted")
    os.chown(path, NOBODY, NOBODY)
    assert str(path) in refused(home) and path.read_text() == "planted"


@pytest.mark.parametrize("which", ["names", "logs", "run", "memory"])
def test_a_link_in_the_place_of_a_folder_is_not_followed(
    home: Home, tmp_path: Path, which: str
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o755)
    path = Path(getattr(home, which))
    if path.exists():
        path.rmdir()
    path.symlink_to(mine)
    assert refused(home).endswith("is a link, so relay does not use it")
    assert mine.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("which", ["ledger", "trust", "broker_lock", "broker_log"])
def test_a_link_in_the_place_of_a_file_is_not_followed(
    home: Home, tmp_path: Path, which: str
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("of mine")
    Path(getattr(home, which)).symlink_to(mine)
    assert "is a link" in refused(home)


def test_the_whole_of_it_may_be_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "relay").symlink_to(tmp_path / "disk")
    Home(str(tmp_path / "relay")).create()
    assert (tmp_path / "disk" / "names").is_dir()


@as_root
def test_a_link_of_another_users_to_a_folder_of_ours_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o755)
    (tmp_path / "relay").symlink_to(tmp_path / "mine")
    os.chown(tmp_path / "relay", NOBODY, NOBODY, follow_symlinks=False)
    assert "another user's link" in refused(Home(str(tmp_path / "relay")))
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("which", ["root", "logs", "run", "trust", "ledger"])
def test_what_others_can_write_is_closed_and_said(home: Home, which: str) -> None:
    path = Path(getattr(home, which))
    if which in ("trust", "ledger"):
        path.write_text("")
    path.chmod(0o777)
    assert home.opened() == [str(path)]
    assert path.stat().st_mode & 0o777 == 0o777  # to look changes nothing
    assert home.create() == [str(path)]
    assert path.stat().st_mode & 0o077 == 0
    assert home.create() == home.opened() == []


@as_root
def test_what_others_left_in_a_folder_that_was_open_is_not_used(home: Home) -> None:
    os.chmod(home.logs, 0o777)
    planted = Path(home.logs, "run.log")
    planted.write_text("")
    os.chown(planted, NOBODY, NOBODY)
    for _ in range(2):  # it is not forgotten by closing the folder
        assert str(planted) in refused(home)


@as_root
def test_a_run_folder_in_a_shared_place_is_never_somebody_elses(tmp_path: Path) -> None:
    home = Home(str(tmp_path / ("x" * 120)))
    assert home.run.startswith("/tmp/relay-")
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o755)
    try:
        os.mkdir(home.run, 0o777)
        os.chown(home.run, NOBODY, NOBODY)
        assert "belongs to another user" in refused(home)
        os.rmdir(home.run)
        os.symlink(victim, home.run)
        os.chown(home.run, NOBODY, NOBODY, follow_symlinks=False)
        assert "another user's link" in refused(home)
        assert victim.stat().st_mode & 0o777 == 0o755
    finally:
        os.unlink(home.run) if os.path.islink(home.run) else os.rmdir(home.run)


def test_a_lock_and_a_log_follow_no_link(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("of mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError):
        files.take_lock(str(tmp_path / "link"))
    with pytest.raises(OSError), open(tmp_path / "link", "a", opener=files.open_private):
        pass
    assert (tmp_path / "mine").read_text() == "of mine"
