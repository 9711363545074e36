"""What the child finds when it starts."""

from __future__ import annotations
