"""How it ends: statuses, signals, closed terminals, killed wrappers."""

from __future__ import annotations
