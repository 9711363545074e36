"""Where the state lives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relay.core.errors import RelayError
from relay.core.paths import SOCKET_PATH_MAX, Home


def test_the_home_comes_from_the_environment() -> None:
    assert Home.from_env({"RELAY_HOME": "/a/b"}).root == "/a/b"
    assert Home.from_env({"XDG_STATE_HOME": "/state", "HOME": "/h"}).root == "/state/relay"
    assert Home.from_env({"HOME": "/h"}).root == "/h/.local/state/relay"
    assert Home.from_env({"XDG_STATE_HOME": "not/absolute", "HOME": "/h"}).root.startswith("/h/")


def test_nothing_is_made_before_it_is_asked_for(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "relay"))
    assert not (tmp_path / "relay").exists()
    home.create()
    home.create()
    assert os.stat(home.run).st_mode & 0o777 == 0o700
    assert os.stat(home.root).st_mode & 0o777 == 0o700


def test_a_socket_directory_that_others_can_enter_is_closed(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "relay"))
    home.create()
    os.chmod(home.run, 0o755)
    home.create()
    assert os.stat(home.run).st_mode & 0o777 == 0o700


def test_a_path_that_is_too_long_for_a_socket_has_a_short_one_beside_it(tmp_path: Path) -> None:
    deep = str(tmp_path / ("x" * 120))
    home = Home(deep)
    assert len(home.broker_socket) <= SOCKET_PATH_MAX
    assert len(home.session_socket("0" * 26)) <= SOCKET_PATH_MAX
    assert home.run == Home(deep).run != Home(deep + "y").run


def test_a_file_in_the_way_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RelayError, match="cannot create the state directory") as caught:
        Home(str(tmp_path / "file" / "relay")).create()
    assert "RELAY_HOME" in caught.value.hint
