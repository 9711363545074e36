"""Which agents may start others, and how many."""

from __future__ import annotations

import pytest

from relay.broker.client import BrokerClient, connect
from relay.broker.directory import Directory
from relay.config.spawned_agents import Spawn, keep
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.core.processes import MARKS
from relay.protocol.agent_ops import RELEASE, SPAWN
from relay.protocol.op import Auth
from tests.broker.fixtures import Configure
from tests.broker.support import register

pytestmark = pytest.mark.skipif(not MARKS, reason="runs are marked on Linux only")


def asked(client: BrokerClient, by: str, name: str) -> str:
    """Whose helper ``name`` may be, or why it may not be started."""
    auth: Auth | None = {"run": by, "token": "secret"} if by else None
    try:
        return str(client.request(SPAWN, name=name, command=["true"], auth=auth)["parent"])
    except RelayError as error:
        assert error.code == "forbidden"
        return error.message


@pytest.mark.usefixtures("served")
def test_an_agent_starts_a_few_helpers_where_it_has_the_right(
    home: Home, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure('may = {"Lead": ["spawn"]}\n')
    for name in ("Lead", "Bob"):
        register(home, name, run=name).close()
    with connect(home) as client:
        assert asked(client, "", "Ann") == ""
        assert "Bob may not start agents" in asked(client, "Bob", "Ann")
        assert [asked(client, "Lead", f"h{n}") for n in range(5)] == ["Lead"] * 5
        assert "Lead has 5 helpers already" in asked(client, "Lead", "h5")
        found = Directory.around
        monkeypatch.setattr(Directory, "around", lambda *of: found(*of) * 3)
        assert "a helper of a helper" in asked(client, "Lead", "h6")


@pytest.mark.usefixtures("served")
def test_an_agent_ends_those_that_the_kernel_has_below_it_and_nobody_else(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a record of what was spawned says of a parent's name."""
    home.create()
    keep(home, Spawn("Bob", ["true"], "/", parent="Lead"), 1, "an earlier run")
    with register(home, "Lead", run="Lead") as lead, register(home, "Bob", run="Bob"):
        for name in ("Bob", "Lead", "Ann"):
            with pytest.raises(RelayError, match="only the person may release"):
                lead.request(RELEASE, name=name)
        found = Directory.around
        monkeypatch.setattr(
            Directory, "around", lambda of, *bob: [*found(of, *bob), of.get("Lead")]
        )
        assert lead.request(RELEASE, name="bob")["by"] == "Lead"
    with connect(home) as person:
        assert person.request(RELEASE, name="Bob")["by"] == ""
