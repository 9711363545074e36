"""What several tests need: waiting for an event with a deadline, and nothing else that waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


#: How much longer than on a quiet machine a test waits: deadlines are against hanging, and no
#: measurement.
PATIENCE = 3


def wait_until(check: Callable[[], T], timeout: float = 20.0, what: str = "") -> T:
    """Call ``check`` until it returns something true, and return that. Fails the test when that
    takes longer than ``timeout`` seconds would on a quiet machine."""
    timeout *= PATIENCE
    begun = time.monotonic()
    pause = threading.Event()
    while True:
        value = check()
        if value:
            return value
        waited = time.monotonic() - begun
        if waited > timeout:
            raise AssertionError(f"waited {timeout} s in vain for {what or check}")
        # Less often the longer it takes: what is waited for needs the processor.
        pause.wait(min(0.01 + waited / 20, 0.1))


def found(look: Callable[[], T | None], timeout: float = 20.0) -> T:
    """Call ``look`` until it returns something, and return that; the deadline as above."""
    value = wait_until(look, timeout)
    assert value is not None
    return value


def unchecked(client: object) -> Any:
    """The same client, whose requests mypy does not check: for ops and fields that are wrong, or
    known at run time only."""
    return client
