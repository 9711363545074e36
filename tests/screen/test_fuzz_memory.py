"""No program makes its session large: what never ends is not kept."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Begun and never ended, and what comes again and again.
ENDLESS = {
    "title": (b"\x1b]0;", b"x" * 65536),
    "clipboard": (b"\x1b]52;c;", b"QUJD" * 16384),
    "device control": (b"\x1bP+q", b"54" * 32768),
    "picture": (b"\x1b_Ga=T,f=24,s=1000,v=1000;", b"AAAA" * 16384),
    "line": (b"", b"x" * 65536),
    "frame": (b"\x1b[?2026h", b"x" * 65536),
    "colours": (b"", b"".join(b"\x1b[38;2;%d;%d;7ma" % (n % 256, n // 256) for n in range(4000))),
    "stacked modes": (b"", b"\x1b[22t\x1b[>1u" * 6000),
}
#: More than what is kept of a line (2 MiB of characters) and what the emulator keeps.
WARM_UP, FEED, GROWTH_MAX = 4_000_000, 16_000_000, 9_000_000
#: The emulator collects a picture of up to 65 MB, and then forgets it.
PICTURE = 80_000_000
MEASURE = f"""
import resource, sys
from relay.screen.source import ScreenSource
from tests.screen.test_fuzz_memory import ENDLESS

def peak():
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024

source = ScreenSource(80, 24)
begin, more = ENDLESS[sys.argv[1]]
source.feed(begin, 0.0)
fed = 0
extra = {PICTURE} if sys.argv[1] == "picture" else 0
while fed < extra + {WARM_UP}:
    source.feed(more, fed / 1e7)
    fed += len(more)
before = peak()
while fed < extra + {FEED}:
    source.feed(more, fed / 1e7)
    fed += len(more)
source.checkpoint()
print(peak() - before)
"""


@pytest.mark.parametrize("what", ENDLESS)
def test_what_never_ends_is_not_kept(what: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, what], capture_output=True, timeout=120, check=True
    )
    assert int(done.stdout) < GROWTH_MAX
