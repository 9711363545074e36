"""Memory in the broker: it passes requests on to the memory service."""

from __future__ import annotations

from relay.broker.batch import Served, untyped
from relay.broker.door import BrokerFeature
from relay.broker.parts import BrokerParts
from relay.features.memory.memory_proxy import MemoryProxy


def feature(parts: BrokerParts) -> MemoryFeature:
    """The feature in the broker."""
    return MemoryFeature(parts)


class MemoryFeature(BrokerFeature):
    """Keeps the memory service."""

    def __init__(self, parts: BrokerParts) -> None:
        kernel = parts.kernel
        self._proxy = MemoryProxy(kernel.home, kernel.directory, log=kernel.log)

    def ops(self) -> list[Served]:
        """Those that begin with ``memory_``."""
        return untyped(self._proxy.handlers())

    def start(self) -> None:
        """Start the service where something waits for it."""
        self._proxy.start()

    async def close(self) -> None:
        """End the service."""
        await self._proxy.close()
