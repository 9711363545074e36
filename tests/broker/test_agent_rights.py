"""What agents may do beyond messages, as trusted configurations say."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.broker.client import BrokerClient, connect
from relay.core.errors import RelayError
from relay.core.paths import Home
from tests.broker.conftest import Configure
from tests.broker.support import register


def asked(client: BrokerClient, by: str, kind: str, agent: str) -> str:
    """How the broker ends the request: ``no_session`` where it would have gone on."""
    auth = {"run": by, "token": "secret"} if by else None
    with pytest.raises(RelayError) as caught:
        client.request("ask", agent=agent, kind=kind, request={}, auth=auth)
    return caught.value.code


@pytest.mark.usefixtures("served")
def test_an_agent_may_what_its_name_is_given_and_where(
    home: Home, configure: Configure, tmp_path: Path
) -> None:
    shop = tmp_path / "shop"
    configure('may = {"bo*": ["peek"]}\n')
    configure('config = {"may": {"*": "transcript", "Ann": ["watch"]}}\n', shop)
    for name, folder in (("Bob", "/"), ("Ann", str(shop)), ("Al", str(shop)), ("Eve", "/")):
        register(home, name, run=name, cwd=folder).close()
    with connect(home) as client:
        # The person's own file: towards everybody. A project's: towards its own agents.
        for by, kind, agent, code in (
            ("", "screen", "Ann", "no_session"),
            ("Bob", "screen", "Ann", "no_session"),
            ("Bob", "transcript", "Ann", "forbidden"),
            ("Bob", "transcript", "Bob", "no_session"),
            ("Ann", "transcript", "Al", "no_session"),
            ("Ann", "transcript", "Bob", "forbidden"),
            ("Ann", "screen", "Al", "forbidden"),
            ("Eve", "screen", "Bob", "forbidden"),
            ("Bob", "choose", "Bob", "forbidden"),
            ("Bob", "interrupt", "Ann", "forbidden"),
        ):
            assert asked(client, by, kind, agent) == code, (by, kind, agent)
