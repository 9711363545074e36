"""A persona that is wrapped, whose turn is cut off: it is begun again, and answered once."""

from __future__ import annotations

import os
import signal

from tests.e2e.wrapped import (
    kill_broker,
    kill_session,
    python,
    relay,
    relay_json,
    wait_registered,
    wrapped,
)
from tests.support import wait_until

#: Works in steps on what is slow, unless it has begun with that before.
SLOW = (
    "import time\n"
    "while True:\n"
    "    line = input()\n"
    "    for n in range(300 if 'forever' in line and 'sent again' not in line else 9):\n"
    "        print('step', n, flush=True)\n"
    "        time.sleep(0.1)\n"
    "    print('finished.', flush=True)\n"
)


def answers() -> list[str]:
    """What the persona has answered me."""
    return [
        row["body"] for row in relay_json("history", "--agent", "atlas") if row["to"] != "atlas"
    ]


def asked() -> list[str]:
    """What the persona was asked, and has read."""
    rows = relay_json("history", "--agent", "atlas")
    return [row["body"] for row in rows if row["to"] == "atlas" and row["state"] == "seen"]


def test_an_agent_killed_in_mid_turn_is_followed_by_the_next_of_its_name() -> None:
    with wrapped(python(SLOW), name="atlas") as atlas:
        wait_registered("atlas")
        id_ = relay("broker", "dispatch", "atlas", "work forever").strip()
        atlas.wait_for("step 3")
        [row] = relay_json("broker", "queue")
        assert (row["id"], row["state"], row["tries"]) == (id_, "running", 0)
        [agent] = relay_json("agents")
        os.kill(agent["pid"], signal.SIGKILL)
        atlas.wait()
    wait_until(lambda: relay_json("broker", "queue")[0]["tries"] == 1, 20, "the first try to fail")
    with wrapped(python(SLOW), name="atlas") as atlas:
        atlas.wait_for("sent again.*finished")
        wait_until(answers, 30, "the answer")
    assert relay_json("broker", "queue") == []
    assert len(answers()) == 1 and "finished." in answers()[0]
    first, second = asked()
    assert first == "work forever" and second.startswith("(This is sent again:")


def test_a_session_and_a_broker_killed_in_mid_turn_change_nothing() -> None:
    with wrapped(python(SLOW), name="atlas") as atlas:
        wait_registered("atlas")
        relay("broker", "dispatch", "atlas", "work once")
        atlas.wait_for("work once.*step 3")
        kill_session(atlas)
        wait_until(lambda: len(answers()) == 1, 30, "the answer")
        relay("broker", "dispatch", "atlas", "work twice")
        atlas.wait_for("work twice.*step 3")
        kill_broker()
        wait_until(lambda: len(answers()) == 2, 30, "the other answer")
        assert len(answers()) == 2 and len(asked()) == 2
        assert relay_json("broker", "queue") == relay_json("broker", "dead") == []
