"""relay without any of its features: two agents talk, and a person with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from relay.core.agent_names import owner_name
from tests import kernel_alone
from tests.e2e.wrapped import ECHO, RELAY, python, relay, relay_json, wait_registered, wrapped
from tests.support import wait_until

#: Says something to Ann, then waits.
SAYS = "print('@relay:Ann hello from Bob', flush=True)\n" + ECHO
#: Shows what it reads, and writes to the person when it has heard Bob.
HEARS = f"""
import sys
for line in sys.stdin:
    print("GOT", line.strip(), flush=True)
    if "from Bob" in line:
        print("@relay:{owner_name()} the work is done", flush=True)
"""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package without its features, which all processes of relay's then run."""
    kernel_alone.copy_kernel(tmp_path, "relay")
    for name, value in kernel_alone.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_kernel_works_without_features(kernel: Path) -> None:
    code = "import relay.core.features as f; print(f.__file__, [*f.modules('broker')])"
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert imported.stdout.split(None, 1) == [f"{kernel}/relay/core/features.py", "[]\n"]
    assert "'memory' is not a relay command" in relay("memory", "list", status=2)

    watch = [*RELAY, "watch", "--json"]
    with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as watching:
        try:
            with wrapped(python(HEARS), name="Ann") as ann:
                wait_registered("Ann")
                relay("send", "Ann", "hello from the person", "--wait=30")
                ann.wait_for("GOT .*hello from the person")
                with wrapped(python(SAYS), name="Bob"):
                    wait_registered("Bob")
                    ann.wait_for("GOT .*hello from Bob")
                    assert {row["name"] for row in relay_json("agents")} == {"Ann", "Bob"}
                    assert relay_json("status")["running"]
                assert relay_json("items") == []
                wait_until(lambda: "the work is done" in relay("inbox"), 30, "the message")
        finally:
            watching.terminate()
        assert watching.stdout is not None
        stream = watching.stdout.read()
    assert "hello from Bob" in stream and "the work is done" in stream
