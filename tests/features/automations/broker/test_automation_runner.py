"""Automations run by real workers: what they return, and that a bad one harms nobody else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from relay.broker.trusted_configs import TrustedConfigs
from relay.core.errors import RelayError, UsageError
from relay.core.paths import Home
from relay.features.automations import automation_runner
from relay.features.automations.automation_runner import AutomationRunner, RunAnswer
from relay.features.automations.definition import AutomationResult
from relay.features.automations.settings import (
    AutomationSettings,
    automation_settings,
    llm_settings,
)
from relay.features.personas.workers import WorkerPool
from relay.ledger.store import Ledger
from tests.broker.fixtures import Configure
from tests.broker.support import LineLog
from tests.ledger.test_queries import put
from tests.support import wait_until

Json = dict[str, Any]
EVENT = {"id": "01E", "channel": "mail", "kind": "message", "sender": "mom@x", "content": "code 7"}
OWNER = {"type": "known", "name": "Mom", "relationship": "family", "id": "p1"}


def file(handler: str, **fields: object) -> str:
    more = "".join(f", {key}={value!r}" for key, value in fields.items())
    return (
        "from relay import Automation, AutomationResult\n"
        f"{handler}\n"
        f"automation = Automation(name='one', description='does it', handler=handler{more})\n"
    )


def question(source: str, automation: str = "A", **fields: Any) -> Json:
    return {
        "automation": automation,
        "version": 1,
        "source": source,
        "path": f"/somewhere/{automation}.py",
        "event": {**EVENT, "timestamp": 1_700_000_000_000, "metadata": {"subject": "hi"}},
        "principal": OWNER,
        "permissions": {"level": "minimal"},
        "session": {"key": "mail:dm:mom@x", "persona": "default"},
        "about": {
            "id": automation,
            "name": "one",
            "created_at": 0,
            "last_triggered": None,
            "config": {"limit": 3},
        },
        "state": {},
        "llm": None,
        "deadline": 20.0,
        "dry": False,
        **fields,
    }


@asynccontextmanager
async def pooled(home: Home) -> AsyncIterator[AutomationRunner]:
    home.create()
    pool = WorkerPool(home, LineLog())
    try:
        yield AutomationRunner(pool, 2)
    finally:
        await pool.close()


async def ran(home: Home, *sources: str, **fields: Any) -> list[RunAnswer]:
    """One run of each, one after the other."""
    async with pooled(home) as runner:
        return [
            await runner.run(question(source, f"A{number}", **fields))
            for number, source in enumerate(sources)
        ]


GOOD = file("def handler(ctx): return True")


async def test_a_handler_sees_the_event_and_its_answer_comes_back(home: Home) -> None:
    told = file(
        "def handler(ctx):\n"
        "    ctx.log.info('from %s', ctx.principal.name)\n"
        "    ctx.state['seen'] = ctx.state.get('seen', 0) + 1\n"
        "    ctx.state.pop('old')\n"
        "    who = ctx.principal\n"
        "    facts = [ctx.event.content, ctx.event.metadata['subject'], who.relationship,\n"
        "             ctx.permissions.level, ctx.session.key, ctx.automation.config['limit'],\n"
        "             ctx.automation.last_triggered, ctx.now.tzinfo is not None, ctx.dry]\n"
        "    told = {'data': {'facts': facts}}\n"
        "    return AutomationResult(fire=True, agent='atlas', context=told)\n"
    )
    late = file("async def handler(ctx): return {'fire': False, 'enrich': {'n': 1}}")
    first, second = await ran(home, told, late, state={"seen": 1, "old": 2, "kept": 3})
    facts = ["code 7", "hi", "family", "minimal", "mail:dm:mom@x", 3, None, True, False]
    data = {"data": {"facts": facts}}
    assert first.result == AutomationResult(fire=True, agent="atlas", context=data)
    assert (first.error, first.log) == (None, "INFO: from Mom\n")
    assert first.state == {"seen": 2, "old": None}
    assert second.result == AutomationResult(enrich={"n": 1}) and second.state == {}


async def test_a_file_is_loaded_for_what_it_says(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pooled(home) as runner:
        found = await runner.load("/x.py", file("def handler(ctx): 1", priority=3, blocking=True))
        assert (found.name, found.priority, found.blocking) == ("one", 3, True)
        for source, why in (
            ("x = 1", "/x.py has no automation at its top"),
            ("def f(:", "/x.py:1: invalid syntax"),
            ("import sys\nsys.exit(3)", r"/x.py cannot be loaded: SystemExit: 3 \(line 2\)"),
            ("automation = {'name': 'A b', 'description': 'x'}", "name cannot be 'A b'"),
            ("automation = {'name': 'a', 'description': 'x'}", "must be a function of one"),
            (file("def handler(): 1"), "the handler of one must be a function of one argument"),
        ):
            with pytest.raises(UsageError, match=why):
                await runner.load("/x.py", source)
        monkeypatch.setattr(automation_runner, "LOAD_DEADLINE", 0.5)
        for source, why in (
            ("import os; os._exit(9)", "its worker ended with status 9"),
            ("while True: pass", "it did not end within 0.5 s"),
        ):
            with pytest.raises(UsageError, match=f"/x.py cannot be loaded: {why}"):
                await runner.load("/x.py", source)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        pytest.param("1 / 0", "ZeroDivisionError: division by zero (line 3)", id="raises"),
        pytest.param("raise OSError('\\x1b[2J\\ud800')", "OSError: ␛[2J\ufffd (", id="escapes"),
        pytest.param("import sys; sys.exit(3)", "SystemExit: 3 (line 3)", id="sys.exit"),
        pytest.param("import os; os._exit(3)", "its worker ended with status 3", id="_exit"),
        pytest.param("import os; os.abort()", "its worker was ended by SIGABRT", id="abort"),
        pytest.param("x = ['x' * 10**8 for _ in range(99)]", "MemoryError (line 3)", id="memory"),
        pytest.param("return {'enrich': {'x': 'x' * 70_000}}", "enrich must be", id="large"),
        pytest.param("return 7", "the result must be a dictionary, not 7", id="no-result"),
        pytest.param(
            "import gc, socket, time\n"
            "    found = [one for one in gc.get_objects() if isinstance(one, socket.socket)]\n"
            "    [one.send(b'x\\n') for one in found]; time.sleep(20)",
            "its worker was ended by SIGKILL",
            id="writes",
        ),
        pytest.param("ctx.state['x'] = 'x' * 66_000", "ctx.state has 66003 bytes", id="state"),
        pytest.param("ctx.state['x'] = object()", "ctx.state holds what is not JSON", id="object"),
        pytest.param("return AutomationResult(agent='\\ud800')", "surrogate", id="surrogate"),
    ],
)
async def test_a_bad_run_is_an_error_of_its_own_and_the_next_one_runs(
    home: Home, body: str, why: str
) -> None:
    bad, good = await ran(home, file(f"def handler(ctx):\n    {body}"), GOOD)
    assert why in (bad.error or "") and bad.state == {}
    assert good.result == AutomationResult(fire=True)


def alive(pids: Path) -> list[int]:
    """Of the processes whose numbers are in the file, those that run."""
    found = []
    for one in pids.read_text().split():
        try:
            with open(f"/proc/{one}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] not in "ZX":
                    found.append(int(one))
        except OSError:
            continue
    return found


def leaving_behind(pids: Path, then: str) -> str:
    """A handler that starts processes, half of them in sessions of their own."""
    return file(
        "import os, signal, subprocess, time\n"
        "def stop(): os.kill(os.getpid(), signal.SIGSTOP)\n"
        "def tell(pid):\n"
        f"    with open({str(pids)!r}, 'a') as told: told.write(f'{{pid}} ')\n"
        "def handler(ctx):\n"
        "    tell(os.getpid())\n"
        "    for number in range(20):\n"
        "        tell(subprocess.Popen(['sleep', '600'], start_new_session=number % 2 == 0).pid)\n"
        "        if os.fork() == 0:\n"
        "            os.setsid()\n"
        "            tell(os.getpid())\n"
        "            time.sleep(600)\n"
        "    tell('all')\n"
        f"    {then}\n"
    )


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="reads /proc")
@pytest.mark.parametrize(
    "then", ["while True: pass", "stop()", "pass"], ids=["hangs", "stops", "returns"]
)
async def test_nothing_that_a_run_has_started_outlives_it(
    home: Home, tmp_path: Path, then: str
) -> None:
    pids = tmp_path / "pids"
    [bad, good] = await ran(home, leaving_behind(pids, then), GOOD, deadline=3.5)
    assert bad.error == (None if then == "pass" else "it did not end within 3.5 s, so it was ended")
    assert good.result == AutomationResult(fire=True)
    assert "all" in pids.read_text()
    wait_until(lambda: not alive(pids), what="the end of all of them")


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="reads /proc")
def test_nothing_of_a_run_goes_on_when_the_broker_is_killed(home: Home, tmp_path: Path) -> None:
    home.create()
    pids = tmp_path / "pids"
    pids.touch()
    asked = question(leaving_behind(pids, "while True: pass"))
    broker = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import asyncio\n"
            "from relay.features.automations.automation_runner import AutomationRunner\n"
            "from relay.features.personas.workers import WorkerPool\n"
            "from relay.core.log import Log\n"
            "from relay.core.paths import Home\n"
            "async def run():\n"
            f"    pool = WorkerPool(Home({home.root!r}), Log({os.devnull!r}))\n"
            f"    await AutomationRunner(pool).run({asked!r})\n"
            "asyncio.run(run())\n",
        ]
    )
    try:
        wait_until(lambda: "all" in pids.read_text(), what="all processes")
    finally:
        broker.kill()
        broker.wait()
    wait_until(lambda: not alive(pids), what="the end of all of them")


async def test_what_hangs_holds_up_nobody_else_and_the_urgent_least(home: Home) -> None:
    async with pooled(home) as runner:
        hang = file("def handler(ctx):\n    while True: pass")
        hung = [
            asyncio.ensure_future(runner.run(question(hang, f"H{n}", deadline=1.5)))
            for n in range(2)
        ]
        await asyncio.sleep(0)
        assert (await runner.run(question(GOOD), urgent=True)).error is None
        assert not any(one.done() for one in hung)
        for one in hung:
            answer = await one
            assert answer.error == "it did not end within 1.5 s, so it was ended"
            assert answer.latency_us >= 1_500_000


async def test_what_the_person_waits_for_has_workers_that_no_run_takes(home: Home) -> None:
    """And loads that hang take none of the runs'."""

    async with pooled(home) as runner:
        hang = file("def handler(ctx):\n    while True: pass")
        hung = [
            asyncio.ensure_future(runner.run(question(hang, f"H{n}", deadline=60), urgent=True))
            for n in range(3)
        ]
        await asyncio.sleep(0)
        assert (await runner.load("/x.py", GOOD)).name == "one"
        assert (await runner.run(question(GOOD, dry=True))).error is None
        loads = [asyncio.ensure_future(runner.load("/y.py", "while True: pass")) for _ in range(3)]
        await asyncio.sleep(0)
        for one in hung:
            one.cancel()
        assert (await runner.run(question(GOOD))).error is None
        for load in loads:
            load.cancel()
        await asyncio.gather(*hung, *loads, return_exceptions=True)


FORGES = """
import json, os, stat, time
def handler(ctx):
    about = {"latency_us": 0, "llm_calls": 0, "state": {}, "result": None, "error": None}
    for fd in range(3, 60):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                os.write(fd, (json.dumps({"id": 1, **about, **FORGED}) + "\\n").encode())
        except OSError:
            pass
    time.sleep(60)
"""


@pytest.mark.parametrize(
    "forged",
    [{"latency_us": 10**30}, {"llm_calls": -1}, {"state": 1}],
    ids=lambda one: next(iter(one)),
)
async def test_an_answer_that_no_worker_gives_is_an_error_of_the_run(
    home: Home, forged: Json
) -> None:
    code = file(FORGES.replace("FORGED", repr(forged)))
    [answer] = await ran(home, code)
    assert answer.error == "its worker answered nonsense" and answer.latency_us < 20_000_000


async def test_a_source_is_sent_once_and_what_is_left_over_ends_its_worker(home: Home) -> None:
    leaves = file(
        "import os, threading, time\n"
        "def handler(ctx):\n"
        "    if ctx.event.content == 'much': len(bytearray(600 << 20))\n"
        "    stay = threading.Thread(target=time.sleep, args=(600,))\n"
        "    if ctx.event.content == 'stay': stay.start()\n"
        "    os.environ['SEEN'] = os.environ.get('SEEN', '') + 'x'; os.chdir('/')\n"
        "    return {'enrich': {'pid': os.getpid(), 'seen': os.environ['SEEN']}}"
    )

    found = []
    async with pooled(home) as runner:
        for content in ("a", "b", "stay", "much", "c"):
            event = {**question("")["event"], "content": content}
            answer = await runner.run(question(leaves, event=event))
            assert answer.result is not None, answer.error
            found.append(dict(answer.result.enrich or {}))
    pids = [one["pid"] for one in found]
    assert pids[0] == pids[1] == pids[2] and len({*pids[2:]}) == 3
    assert {one["seen"] for one in found} == {"x"}


async def test_the_model_is_the_configured_one_and_its_program_has_no_limits_of_a_handler(
    home: Home, configure: Configure, tmp_path: Path
) -> None:
    program = {"command": ["sh", "-c", "ulimit -v"], "tools": False}
    configure(f"config = {{'llm': {program}, 'automations': {{'agents': False}}}}")
    shop = tmp_path / "shop"
    shop.mkdir()
    configure("config = {'llm': {'provider': 'ollama', 'model': 'm'}}", shop)
    configs = TrustedConfigs(home)
    assert automation_settings(configs) == AutomationSettings(agents=False, workers=4)
    assert llm_settings(configs, str(shop)) == {"provider": "ollama", "model": "m"}
    asks = file("def handler(ctx): return {'enrich': {'said': ctx.llm('?')}}")
    [answer, none] = await ran(home, asks, llm=llm_settings(configs, None)) + await ran(home, asks)
    assert answer.result == AutomationResult(enrich={"said": "unlimited"}), answer.error
    assert answer.llm_calls == 1
    assert "no language model is configured" in (none.error or "") and none.llm_calls == 0


async def test_the_ledger_is_read_and_searched_and_no_more(home: Home) -> None:
    home.create()
    ledger = Ledger(home.ledger)
    for number, body in enumerate(("flight to Oslo", "no", "a flight")):
        put(ledger, number, "Al", ["Bob"], body)
    ledger.close()
    reads = file(
        "def handler(ctx):\n"
        "    rows = ctx.ledger.query('SELECT body FROM events WHERE body LIKE ? ORDER BY seq',"
        " ('%flight%',))\n"
        "    found = ctx.search('Oslo flight', channels='relay', since=0)\n"
        "    return {'enrich': {'rows': rows, 'scores': [one['score'] for one in found]}}"
    )
    writes = file("def handler(ctx): ctx.ledger.query('DELETE FROM events')")
    many = file(
        "def handler(ctx): ctx.ledger.query('WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL"
        " SELECT x + 1 FROM n WHERE x < 1001) SELECT x FROM n')"
    )
    read, wrote, counted = await ran(home, reads, writes, many)
    rows = [{"body": "flight to Oslo"}, {"body": "a flight"}]
    assert read.result == AutomationResult(enrich={"rows": rows, "scores": [1.0, 0.5]}), read.error
    assert "the ledger can only be read" in (wrote.error or "")
    assert "more than 1000 rows" in (counted.error or "")


async def test_a_run_has_limits_of_its_own(home: Home) -> None:
    source = file(
        "import resource, time\n"
        "def handler(ctx):\n"
        "    names = ('AS', 'NOFILE', 'CORE')\n"
        "    found = [resource.getrlimit(getattr(resource, 'RLIMIT_' + n))[0] for n in names]\n"
        "    left = resource.getrlimit(resource.RLIMIT_CPU)[0] - time.process_time()\n"
        "    return {'enrich': {'limits': found, 'left': left}}"
    )
    [answer] = await ran(home, source, deadline=7.0)
    assert answer.result is not None and answer.result.enrich is not None
    assert answer.result.enrich["limits"] == [1 << 30, 256, 0]
    assert 6 <= answer.result.enrich["left"] <= 8.0


async def test_a_worker_speaks_for_the_person_and_imports_nothing_that_agents_may_write(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "colorsys.py").write_text("evil = True")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("RELAY_RUN", "01AGENT")
    monkeypatch.chdir(tmp_path)
    source = file(
        "import colorsys, os\n"
        "def handler(ctx): return hasattr(colorsys, 'evil') or 'RELAY_RUN' in os.environ"
    )
    [answer] = await ran(home, source)
    assert answer.result == AutomationResult(fire=False), answer.error


async def test_what_is_printed_is_logged_by_whole_lines(home: Home) -> None:
    printing = "def handler(ctx):\n    print('two', 'words')\n    print('more', end='')\n"
    [answer] = await ran(home, file(printing))
    assert answer.error is None
    log = (Path(home.logs) / "automations.log").read_text()
    said = [line.split(" ", 2)[-1] for line in log.splitlines()]
    words = ["two words", "more"]
    assert [one for one in said if one in words] == words, log  # whatever the worker says beside


async def test_a_flood_of_output_and_of_log_lines_is_cut_and_costs_no_wait(home: Home) -> None:
    flood = file(
        "import os\n"
        "def handler(ctx):\n"
        "    for _ in range(20_000): ctx.log.warning('x' * 100)\n"
        "    os.write(1, b'y' * 20_000_000)\n"
    )
    [answer] = await ran(home, flood, deadline=10.0)  # at the rate of the log it takes longer
    assert answer.error is None and len(answer.log) < 17_000
    assert answer.log.startswith("WARNING: xxx")
    left_out = 20_000 * 110 + 20_000_000 - 16 * 1024
    assert answer.log.endswith(f"…\n({left_out} bytes more were printed)\n")
    log = Path(home.logs) / "automations.log"
    assert 0 < log.stat().st_size < 1_100_000


HANGS = {
    "sleeps": "time.sleep(600)",
    "spins": "while True: pass",
    "ignores signals": "[signal.signal(one, signal.SIG_IGN) for one in IGNORED]; time.sleep(600)",
    "a child holds the output": "subprocess.Popen(['sleep', '600'], start_new_session=True).wait()",
}


@pytest.mark.parametrize("how", HANGS.values(), ids=HANGS)
async def test_what_a_run_that_hangs_has_printed_is_kept(home: Home, how: str) -> None:
    hangs = file(
        "import os, signal, subprocess, time\n"
        "IGNORED = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM\n"
        "def handler(ctx):\n"
        "    print('before', '\\x1b[2J')\n"
        "    ctx.log.info('begins')\n"
        "    subprocess.run(['echo', 'a program'])\n"
        f"    {how}\n"
    )
    hung, good = await ran(home, hangs, GOOD, deadline=3.0)
    assert hung.error == "it did not end within 3 s, so it was ended"
    assert hung.log == "before ␛[2J\nINFO: begins\na program\n"
    assert (good.result, good.log) == (AutomationResult(fire=True), "")


async def test_a_worker_without_work_ends_and_the_next_run_has_another(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automation_runner, "IDLE", 0.05)
    says = file("import os\ndef handler(ctx): return {'enrich': {'pid': os.getpid()}}")

    found = []
    async with pooled(home) as runner:
        for _ in range(2):
            answer = await runner.run(question(says))
            assert answer.result is not None and answer.result.enrich is not None
            found.append(answer.result.enrich["pid"])
            while not gone(found[-1]):
                await asyncio.sleep(0.01)
    assert len(set(found)) == 2


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_when_the_broker_stops_who_waits_gets_no_answer(home: Home) -> None:
    home.create()

    pool = WorkerPool(home, LineLog())
    runner = AutomationRunner(pool, workers=1)
    hang = file("def handler(ctx):\n    while True: pass")
    tasks = [asyncio.ensure_future(runner.run(question(hang, f"H{n}"))) for n in range(2)]
    await asyncio.sleep(0)
    await pool.close()
    for one in tasks:
        with pytest.raises(RelayError, match="the broker stops") as raised:
            await one
        assert raised.value.code == "stopping"
