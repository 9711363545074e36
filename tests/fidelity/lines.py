"""The line discipline: modes, editing, echo, the keys that make signals."""

from __future__ import annotations
