"""The size of the terminal, in characters and pixels, from the start and when it changes."""

from __future__ import annotations
