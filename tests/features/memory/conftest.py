"""What measures the quality of a search, as the benchmark has it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture(scope="module")
def quality() -> Iterator[ModuleType]:
    """``bench/memory_quality.py``: bench/ is no package, its files are scripts."""
    spec = importlib.util.spec_from_file_location("memory_quality", BENCH / "memory_quality.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]
