"""What a person at relay waits for, and what it costs to look on.

    python bench/people.py [--case NAME] [--json]

``console``: the console in a terminal of 80x24 while 50 agents say 100 messages a second to each
other, each of which is delivered, submitted and seen, and makes its receiver busy and idle again.
The aims: less than 15 % of a core, and less than 50 ms from a key to its letter on the screen (the
median, and nine in ten, while that goes on).

``web``: the web page in Chromium with 10 000 messages in the ledger, and then while the agents talk
as above. The aims: its first paint within 300 ms, its messages within a second, its server below
15 % of a core.

``peek``: ``relay peek`` of an agent that draws twenty coloured lines a second. The aim: 150 ms.

``line``: ``relay status-line`` while the agents talk, as tmux or a prompt calls it. The aim: 60 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from harness import RELAY, Terminal, cpu, deadline, home, relay, wait_listed

from relay.broker.async_client import AsyncClient
from relay.core.ids import new_ulid
from relay.core.paths import Home
from relay.ledger.store import Ledger
from relay.protocol.agent_ops import AGENT_STATE
from relay.protocol.message_ops import STATE

AGENTS, RATE = 50, 100
#: Messages in the ledger that the web page begins with.
STORED = 10_000
#: Seconds of CPU that are counted, and keys that are pressed, while the agents talk.
COUNTED, PRESSED = 15.0, 100

Row = dict[str, float | str | bool]


class _Agent:
    """One that says something now and then, and takes what it is told at once."""

    def __init__(self, where: Home, name: str) -> None:
        self.name = name
        self.client = AsyncClient(where, on_push=self._heard)
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        await self.client.open()
        await self.client.register(
            name=self.name, run=self.name, token="t", kind="bench", pid=0, cwd="/", command=""
        )
        await self.client.request(AGENT_STATE, state="idle")

    def _heard(self, push: dict[str, object]) -> None:
        if push.get("push") == "deliver":
            task = asyncio.get_running_loop().create_task(self._take(push))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _take(self, push: dict[str, object]) -> None:
        id_ = str(push["id"])
        await self.client.request(STATE, id=id_, state="delivering", attempt=1)
        await self.client.request(STATE, id=id_, state="submitted")
        await self.client.request(AGENT_STATE, state="busy")
        await self.client.request(STATE, id=id_, state="seen")
        await self.client.request(AGENT_STATE, state="idle")


async def talk(where: Home) -> None:
    """AGENTS agents say RATE messages a second; those who speak are told nothing, so that no chain
    of messages grows."""
    agents = [_Agent(where, f"Agent{n:02d}") for n in range(AGENTS)]
    for agent in agents:
        await agent.open()
    print("ready", flush=True)
    speakers, listeners = agents[::2], agents[1::2]
    waiting: set[asyncio.Task[object]] = set()
    loop = asyncio.get_running_loop()
    began = loop.time()
    for n in range(10_000_000):
        to, text = listeners[n * 7 % len(listeners)].name, f"message {n}: " + "please look " * 8
        sent = loop.create_task(speakers[n % len(speakers)].client.send(to, text))
        waiting.add(sent)
        sent.add_done_callback(waiting.discard)
        await asyncio.sleep(max(0.0, began + n / RATE - loop.time()))


def console() -> list[Row]:
    """The console's CPU, and how soon keys are shown."""
    with home() as (_, env), deadline(180, "the console"):
        env.update(TERM="xterm-256color", LANG="C.UTF-8")
        relay(env, "agents")
        talking = subprocess.Popen(
            [sys.executable, __file__, "--talk"], env=env, stdout=subprocess.PIPE
        )
        assert talking.stdout is not None
        talking.stdout.readline()
        terminal = Terminal([*RELAY, "console"], env)
        try:
            terminal.read_until(b" help ")
            pressed = _Keys(terminal).press(PRESSED)
            reading = threading.Event()
            reader = threading.Thread(target=_drain, args=(terminal, reading))
            reader.start()
            time.sleep(2.0)
            began, before = time.monotonic(), cpu(terminal.pid)
            time.sleep(COUNTED)
            share = (cpu(terminal.pid) - before) / (time.monotonic() - began)
            reading.set()
            reader.join()
        finally:
            talking.terminate()
            talking.wait()
            terminal.close()
    ms = statistics.quantiles(pressed, n=10)
    return [
        row("console: % of a core", share * 100, 15),
        row("console: key to screen, ms, p50", statistics.median(pressed), 50),
        row("console: key to screen, ms, p90", ms[-1], 50),
    ]


def web() -> list[Row]:
    """The page's first paint and its messages, of STORED in the ledger; its server's CPU."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    with home() as (_, env), deadline(180, "the web page"):
        store(Home(env["RELAY_HOME"]), STORED)
        relay(env, "agents")
        served = subprocess.Popen([*RELAY, "web"], env=env, stdout=subprocess.PIPE, text=True)
        ends: list[subprocess.Popen[str]] = [served]
        try:
            assert served.stdout is not None
            with sync_playwright() as driver:
                flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
                browser = driver.chromium.launch(executable_path=program, args=flags)
                times = []
                for _ in range(5):
                    page = browser.new_page()
                    page.goto(served.stdout.readline().strip())
                    page.wait_for_selector(".message >> nth=200")
                    times.append(page.evaluate(PAINTED))
                    page.close()
                talking = subprocess.Popen(
                    [sys.executable, __file__, "--talk"],
                    env=env,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                ends.append(talking)
                page = browser.new_page()
                page.goto(served.stdout.readline().strip())
                page.wait_for_selector("text=message 1")
                began, before = time.monotonic(), cpu(served.pid)
                time.sleep(COUNTED)
                share = (cpu(served.pid) - before) / (time.monotonic() - began)
                browser.close()
        finally:
            for one in ends:
                one.terminate()
                one.wait()
    return [
        row("web: first paint, ms", statistics.median(one[0] for one in times), 300),
        row("web: messages shown, ms", statistics.median(one[1] for one in times), 1000),
        row("web: % of a core, 100 messages/s", share * 100, 15),
    ]


#: Milliseconds from asking for the page to its first paint, and until its messages stand there.
PAINTED = """() => [performance.getEntriesByName("first-contentful-paint")[0].startTime,
    performance.getEntriesByName("messages-shown")[0].startTime]"""


def store(where: Home, count: int) -> None:
    """A ledger with so many messages, each delivered."""
    where.create()
    ledger = Ledger(where.ledger)
    ledger.begin()
    now = int(time.time() * 1000) - count * 1000
    for n in range(count):
        seq, at = ledger.next_seq(), now + n * 1000
        text = f"stored {n}: " + "please look " * 20
        said = (f"Agent{n % 50:02d}", "agent", "followup", None, text, None, at)
        way = (f"Agent{n * 7 % 50:02d}", n + 1, 0, "seen", None, at, 0, 0)
        ledger.add([(seq, new_ulid(at), "message", *said)], [(seq, *way)])
    ledger.commit()
    ledger.close()


def _drain(terminal: Terminal, done: threading.Event) -> None:
    while not done.is_set():
        if select.select([terminal.master], [], [], 0.1)[0]:
            terminal.read()


class _Keys:
    """Presses keys, and looks for what they make appear."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def press(self, times: int) -> list[float]:
        """Milliseconds until each of ``times`` letters stood on the screen."""
        taken = []
        for n in range(times):
            self._read(0.03 + n % 7 * 0.013)  # at any moment of a painting
            began = time.perf_counter()
            self._terminal.write(b"Q")
            while b"Q" not in self._read(None):
                pass
            taken.append((time.perf_counter() - began) * 1000)
            self._terminal.write(b"\x7f")
        return taken

    def _read(self, seconds: float | None) -> bytes:
        """What is shown next; with ``seconds`` everything of that time."""
        if seconds is None:
            return self._terminal.read()
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            if select.select([self._terminal.master], [], [], left)[0]:
                self._terminal.read()
        return b""


def row(name: str, value: float, limit: float) -> Row:
    """One figure, and whether it is below its limit."""
    return {"case": name, "value": round(value, 2), "limit": limit, "met": value < limit}


def line() -> list[Row]:
    """How long ``relay status-line`` takes while the agents talk."""
    with home() as (_, env), deadline(120, "the status line"):
        relay(env, "agents")
        talking = subprocess.Popen(
            [sys.executable, __file__, "--talk"], env=env, stdout=subprocess.PIPE
        )
        try:
            assert talking.stdout is not None
            talking.stdout.readline()
            times = []
            for _ in range(40):
                began = time.perf_counter()
                assert "agents" in relay(env, "status-line")
                times.append((time.perf_counter() - began) * 1000)
        finally:
            talking.terminate()
            talking.wait()
    return [row("status-line, ms, p50", statistics.median(times), 60)]


def peek() -> list[Row]:
    """How long ``relay peek`` takes for a screen full of colours that is drawn all the time."""
    program = (
        "import time\nprint('READY')\nfor n in range(10000):\n"
        "    row = (f'\\x1b[38;5;{(n + x) % 256}mword {x:4} ' for x in range(7))\n"
        "    print(''.join(row), flush=True)\n    time.sleep(0.05)\n"
    )
    found = []
    with home() as (_, env), deadline(120, "peek"):
        wrap = [*RELAY, "wrap", "--name", "Bob", "--", sys.executable, "-c", program]
        terminal = Terminal(wrap, env)
        done = threading.Event()
        try:
            terminal.read_until(b"READY")
            reader = threading.Thread(target=_drain, args=(terminal, done))
            reader.start()
            wait_listed(["Bob"], env)
            for words in (("peek", "Bob"), ("peek", "Bob", "--color")):
                times = []
                for _ in range(20):
                    began = time.perf_counter()
                    relay(env, *words)
                    times.append((time.perf_counter() - began) * 1000)
                found.append(row(f"{' '.join(words)}, ms, p50", statistics.median(times), 150))
        finally:
            done.set()
            reader.join()
            terminal.close()
    return found


CASES: dict[str, Callable[[], list[Row]]] = {
    "console": console,
    "web": web,
    "line": line,
    "peek": peek,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, action="append", help="only this one")
    parser.add_argument("--talk", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.talk:
        asyncio.run(talk(Home(os.environ["RELAY_HOME"])))
        return 0
    rows = [found for name in options.case or CASES for found in CASES[name]()]
    if options.json:
        print(json.dumps(rows))
    else:
        for one in rows:
            mark = "" if one["met"] else "  missed"
            print(f"{one['case']:34} {one['value']:8} {'<':>3} {one['limit']}{mark}")
    return 0 if all(one["met"] for one in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
