"""Job control: stopping, and going on with the terminal."""

from __future__ import annotations
