"""mem0 asks when it is imported whether it may tell anything: here never, whoever imports it."""

from __future__ import annotations

import os

from tests.features.memory.embedding.conftest import minilm

__all__ = ["minilm"]

os.environ["MEM0_TELEMETRY"] = "False"
