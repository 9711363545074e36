"""What the tests of Qwen Code's source share."""

from __future__ import annotations

import pytest

from tests.agents.qwen.heard import Heard


@pytest.fixture
def it() -> Heard:
    heard = Heard()
    heard.begin()
    heard.events.clear()
    return heard
