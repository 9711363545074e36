"""A state directory whose broker ends with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from relay.broker import client as broker_client
from relay.broker.client import BrokerClient, connect
from relay.config.load import load_for_session
from relay.config.trust import CONFIG_NAME, trust, user_config
from relay.core.errors import BrokerUnavailable
from relay.core.paths import Home
from relay.protocol.op import by_name
from tests.broker.support import broker_thread, stop_broker

Configure = Callable[..., str]


@pytest.fixture
def home(isolated_home: Path) -> Iterator[Home]:
    """Its broker is a process that the first client starts."""
    home = Home(str(isolated_home))
    yield home
    stop_broker(home)


@pytest.fixture
def served(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A broker serves ``home`` in a thread of this process, and forgets agents sooner.

    A test that wants a process after all begins with ``stop_broker(home)``.
    """
    monkeypatch.setattr(broker_client, "KNOWN", 0.2)
    with broker_thread(home, grace=0.2):
        yield


@pytest.fixture
def client(home: Home, served: None) -> Iterator[BrokerClient]:
    """A connection of the person's."""
    with connect(home) as client:
        yield client


@pytest.fixture
def configure(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Writes and trusts a configuration: the person's own, or that of a folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))

    def write(text: str, folder: Path | None = None) -> str:
        path = Path(user_config()) if folder is None else folder / CONFIG_NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("from relay import *\nrelay = Relay()\n" + text)
        trust(home, str(path))
        load_for_session(home, str(path.parent))  # makes its manifest, as relay trust does
        with suppress(BrokerUnavailable), connect(home, start=False) as asked:
            asked.request(by_name("routes"))  # the broker looks again at once
        return str(path)

    return write
