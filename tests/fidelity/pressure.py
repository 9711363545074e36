"""Under pressure: nobody reads, or the session is stopped or killed."""

from __future__ import annotations
