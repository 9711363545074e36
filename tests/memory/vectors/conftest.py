"""mem0 asks when it is imported whether it may tell anything: here never, whoever imports it."""

from __future__ import annotations

import os

os.environ["MEM0_TELEMETRY"] = "False"
