"""Without a terminal, or with only some of it."""

from __future__ import annotations
