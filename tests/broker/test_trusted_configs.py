"""A trust counts from the next turn of the loop on, and a look-up reads no file."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from relay.broker.trusted_configs import USER, TrustedConfigs
from relay.config.trust import trust, untrust, user_config
from relay.core.paths import Home


@pytest.fixture
def own(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The person's own configuration, not trusted yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = user_config()
    os.makedirs(os.path.dirname(path))
    Path(path).write_text("config = {}\n")
    return path


def test_what_is_trusted_or_revoked_counts_from_the_next_turn_on(home: Home, own: str) -> None:
    ends: list[Callable[[], None]] = []
    configs = TrustedConfigs(home, ends.append)

    def is_trusted() -> bool:
        known = configs.by_key(USER) is not None
        assert (configs.applying(None) != ()) == known == (len(configs.all()) == 1)
        while ends:
            ends.pop()()
        return known

    assert not is_trusted()
    trust(home, own)
    assert is_trusted()
    Path(own).write_text("config = {'redact': False}\n")
    assert not is_trusted()
    Path(own).write_text("config = {}\n")
    assert is_trusted()
    untrust(home, own)
    assert not is_trusted()


def test_a_program_of_the_configuration_counts_as_the_file_does(
    home: Home, own: str, tmp_path: Path
) -> None:
    program = tmp_path / "guard.sh"
    program.write_text("true\n")
    trust(home, own, programs={str(program): sha256(b"true\n").hexdigest()})
    configs = TrustedConfigs(home)
    assert configs.by_key(USER) is not None
    program.write_text("false\n")
    assert configs.by_key(USER) is None
    program.write_text("true\n")
    assert configs.by_key(USER) is not None
