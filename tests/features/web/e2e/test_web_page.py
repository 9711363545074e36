"""The web page in a real browser: with real agents, and with hostile text in every field."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from relay.protocol.item_ops import waiting_words
from tests.e2e.test_answering import LIST
from tests.e2e.wrapped import ECHO, RELAY, SAY, python, say, wait_registered, wrapped
from tests.features.web.ui.page_source import FakeSource, served
from tests.support import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

#: So that it starts nothing else and asks nobody.
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
#: Would run a script, close what it stands in, hide text or turn it, where it is taken as markup.
EVIL = (
    "</script><img src=x onerror=hit()>\u202e\x1b[2J\u200b"
    "<svg onload=hit()>'\"${hit()}javascript:hit()"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have Chromium")
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, link: str, width: int, height: int = 800) -> Iterator[Page]:
    """The page, of which each error and each script that it should not run fails the test."""
    context = browser.new_context(viewport={"width": width, "height": height})
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.on(
        "request",
        lambda asked: None if asked.url.startswith(link[:20]) else wrong.append(asked.url),
    )
    page.expose_function("hit", lambda: wrong.append("a script of somebody else's ran"))
    page.goto(link)
    yield page
    context.close()
    assert wrong == []


def shoot(page: Page, name: str) -> None:
    """Keep a picture for people to look at where ``RELAY_TEST_PICTURES`` names a folder."""
    if folder := os.environ.get("RELAY_TEST_PICTURES"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def test_the_page_shows_what_agents_do_and_answers_them(browser: Browser, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    with subprocess.Popen([*RELAY, "web"], stdout=subprocess.PIPE, text=True) as web:
        assert web.stdout is not None
        link = web.stdout.readline().strip()
        try:
            with (
                wrapped(python(ECHO), name="Bob"),
                wrapped([*python(LIST), str(answers)], name="Carol") as carol,
                wrapped(python(SAY), name="Alice") as alice,
                opened(browser, link, 1200) as page,
            ):
                wait_registered("Alice", "Bob", "Carol")
                page.wait_for_selector("[data-agent=Bob]")
                assert "#" not in page.url  # the code is gone from the address
                alice.type(say("@relay:Bob hello there\n"))
                page.wait_for_selector(".message:has-text('hello there') >> text=seen")
                page.click(".message:has-text('hello there')")
                path = page.wait_for_selector("ol.path:has-text('the agent has it')")
                assert path is not None
                words = " ".join(path.inner_text().split())
                assert words.index("Alice said it") < words.index("Bob delivering")
                shoot(page, "message")
                page.click("[data-agent=Bob]")
                page.wait_for_selector(".screen:has-text('GOT Relay message')")
                shoot(page, "agent")
                page.fill("#detail .write textarea", "from the page")
                page.click("#detail >> text=Send")
                page.wait_for_selector(".screen:has-text('from the page')")
                page.wait_for_selector(".message:has-text('from the page') >> text=seen")
                page.click("text=Charts")
                page.wait_for_selector("figure:has-text('Messages: 2')")
                page.click("nav >> text=Intents")
                page.wait_for_selector("#traces:has-text('No agent is in a governed project')")
                # A question on Carol's screen: answered from here, and the next one comes.
                page.click(".item:has-text('Question 0') >> text=Blue")
                page.wait_for_selector(".item:has-text('Question 1')")
                page.wait_for_selector("#waiting h2:has-text('1 question waits')")
                shoot(page, "question")
                page.click(".item:has-text('Question 1') >> text=Green")
                assert carol.wait() == 0
                assert answers.read_text() == "Blue\nGreen\n"
                page.wait_for_selector("[data-agent=Carol]:has-text('gone')")
                page.reload()  # its key is still good
                page.fill("#search", "HELLO")
                page.wait_for_selector("text=Messages with “HELLO”")
                page.wait_for_selector(".message:has-text('hello there')")
        finally:
            web.terminate()


#: Whether a choice cannot be clicked on in the moment in which its card appears.
JUST_COME = (
    "() => { placed.clear(); draw_items();"
    " return document.querySelector('.choices button').disabled; }"
)
#: Whether it still can when another card has come below it.
ANOTHER_BELOW = (
    "() => { items.set('I9', {...items.get('I1'), id: 'I9', since_ms: 9e12}); draw_items();"
    " const free = !document.querySelector('.choices button').disabled;"
    " items.delete('I9'); draw_items(); return free; }"
)


def hostile_rows(now_ms: int) -> dict[str, Any]:
    agent = {"name": EVIL, "state": EVIL, "reason": EVIL, "kind": EVIL, "cwd": EVIL, "unread": 1}
    item = {"agent": EVIL, "what": EVIL, "since_ms": now_ms, "until_ms": now_ms, "chosen": 0}
    choices = [{"key": "1", "label": EVIL}, {"key": "2", "label": "No"}]
    message = {"id": "M1", "seq": 1, "from": EVIL, "from_kind": EVIL, "to": EVIL, "body": EVIL}
    return {
        "agents": [agent | {"since_ms": now_ms, "command": EVIL, "roles": [EVIL]}],
        "items": [
            item | {"id": "I1", "kind": "approval", "choices": choices},
            item | {"id": "I2", "kind": "question", "choices": choices, "what": "1\n" * 99},
        ],
        "elsewhere": [{"name": EVIL, "here": False, "seen_ms": now_ms}],
        "messages": [message | {"created_ms": now_ms, "state": EVIL, "channel": EVIL}],
        "more": False,
        "me": EVIL,
    }


def test_hostile_text_stays_text_and_the_person_answers(browser: Browser) -> None:
    source = FakeSource(hostile_rows(1_700_000_000_000))
    shown = {"id": "M1", "from": EVIL, "body": EVIL, "created_ms": 1, "from_kind": EVIL}
    step = {"at_ms": 1, "what": "hook", "who": EVIL, "state": EVIL, "text": EVIL}
    style = {"fg": EVIL, "bg": "#ff0000", "bold": EVIL}
    source.answers = {
        "message": {"message": {**shown, "deliveries": [{"to": EVIL}]}, "steps": [step]},
        "screen": {"cols": 80, "rows": 2, "lines": [EVIL], "spans": [[[EVIL, style]]]},
        "figures": {
            **{"since_ms": 0, "now_ms": 3_600_000, "bucket_ms": 60_000},
            **{"sent": [[EVIL, 1, 1]], "states": {EVIL: 1}},
            "spent": [
                {"agent": EVIL, "input": 9, "output": 2, "cached": 1, "written": 0}
                | {"money": 0.5, "unpriced": [EVIL]}
            ],
            "latency": {EVIL: {"number": 1, "median_ms": 1, "p95_ms": 2}},
        },
        "answer": {"choice": {"key": "2", "label": "No"}, "by": EVIL},
    }
    with served(source) as server, opened(browser, server.link, 390, 844) as page:
        page.wait_for_selector(".message", state="attached")
        page.wait_for_selector("#tab-waiting[aria-selected=true]")  # where it opens, then
        shoot(page, "phone-waiting")
        said = page.inner_text("[data-item=I1] .said")
        assert "onerror=hit()" in said and "\\u202e^[[2J" in said
        # What has just appeared takes no click; then one answers this very item.
        assert page.evaluate(JUST_COME)
        page.fill(".item input", "because")
        page.wait_for_selector("[data-item=I1] .choices button:enabled")
        assert page.evaluate(ANOTHER_BELOW)
        page.focus(".item input")
        # What one is writing stays, and stays in focus, when something else is drawn.
        assert page.evaluate("() => { in_place(draw_items); return document.activeElement.value }")
        page.click("[data-item=I1] .choices button >> nth=1")
        page.wait_for_selector("text=Answered: No")
        assert ("answer", {"id": "I1", "choice": "2", "note": "because"}) in source.asked
        # What is longer than its box is read to its end first.
        page.wait_for_selector("[data-item=I2] >> text=Scroll to the end before you answer.")
        assert page.is_disabled("[data-item=I2] .choices button >> nth=0")
        page.hover("[data-item=I2] .said")
        page.mouse.wheel(0, 9000)
        page.click("[data-item=I2] .choices button >> nth=0")
        page.wait_for_selector("[data-item=I2] >> text=Answered")
        page.click("nav >> text=Messages")
        page.click(".message")
        page.wait_for_selector("ol.path li")
        page.go_back()
        page.click("nav >> text=Agents")
        page.click(".agent")
        page.wait_for_selector(".screen pre div")
        shoot(page, "phone-screen")
        page.go_back()
        page.click("nav >> text=Charts")
        page.wait_for_selector("figure")
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390  # nothing hangs out of a phone
        source.tell(*({"what": "item", "item": {"id": one}, "open": False} for one in ("I1", "I2")))
        page.wait_for_selector("text=Nothing waits for you", state="attached")


@pytest.mark.parametrize("named", ["{folder}/opener", "./opener"], ids=["whole", "relative"])
def test_open_starts_the_browser_of_the_person_and_none_of_the_repository(
    tmp_path: Path, named: str
) -> None:
    opener = tmp_path / "opener"
    opener.write_text(
        f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/begun\nmv {tmp_path}/begun {tmp_path}/link'
    )
    opener.chmod(0o755)
    env = {**os.environ, "BROWSER": named.format(folder=tmp_path)}
    for desktop in ("DISPLAY", "WAYLAND_DISPLAY"):
        env.pop(desktop, None)
    with subprocess.Popen(
        [*RELAY, "web", "--open"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env=env,
    ) as web:
        assert web.stdout is not None
        try:
            if named.startswith("."):
                assert any("No browser could be opened" in line for line in web.stdout)
                assert not (tmp_path / "link").exists()
            else:
                link = next(line for line in web.stdout if line.startswith("http"))
                wait_until((tmp_path / "link").exists, what="the browser")
                assert (tmp_path / "link").read_text() == link.strip()
        finally:
            web.terminate()


def test_a_question_is_answered_below_the_screen_in_full_size(browser: Browser) -> None:
    source = FakeSource(team_rows(NOW))
    source.answers = team_answers(NOW) | {"answer": {"choice": {}, "by": "me"}}
    with served(source) as server, opened(browser, server.link, 1200) as page:
        heading = page.wait_for_selector("#waiting h2")
        assert heading is not None
        assert heading.inner_text() == "2 questions wait, 9,940 messages are held"
        page.click("[data-agent=Carol]")
        page.wait_for_selector(".screen .cursor")
        page.keyboard.press("f")
        shoot(page, "question-full")
        page.click("#asks .item >> text=No, and tell me why")
        page.wait_for_selector("#asks >> text=Answered: No, and tell me why")
        assert ("answer", {"id": "I1", "choice": "2", "note": ""}) in source.asked
        page.keyboard.press("Escape")
        page.wait_for_selector("#waiting [data-item=I1]")


def test_messages_of_a_flood_that_are_held_are_one_line(browser: Browser) -> None:
    source = FakeSource({"agents": [], "items": [], "messages": [], "more": False, "me": "me"})

    def message(number: int, sender: str = "Dave") -> dict[str, Any]:
        told = {"what": "message", "id": f"H{number}", "from": sender, "from_kind": "agent"}
        return told | {"to": ["Erin"], "body": f"number {number}", "at_ms": NOW + number}

    def delivery(number: int, state: str) -> dict[str, Any]:
        return {"what": "delivery", "id": f"H{number}", "to": "Erin", "state": state}

    with served(source) as server, opened(browser, server.link, 1200) as page:
        page.wait_for_selector("text=No agent yet")
        source.tell(message(0, "Bob"), *[message(n) for n in range(1, 40)])
        page.wait_for_selector(".message:has-text('number 39')")
        source.tell(*[delivery(n, "held") for n in range(1, 40)])
        page.wait_for_selector(".message:has-text('and others before it')")
        shoot(page, "flood")
        assert page.locator(".message").count() == 2
        source.tell(delivery(7, "seen"))  # it is let go
        page.wait_for_selector(".message:has-text('number 7')")
        assert page.locator(".message").count() == 4


def test_an_answer_stands_among_the_messages_and_leads_to_its_question(browser: Browser) -> None:
    now_ms = int(time.time() * 1000)
    told = team_rows(now_ms)
    answer = {"asked": "M29", "from": "Alice", "to": "Erin", "body": "All of them pass."}
    source = FakeSource(told | {"answers": [answer | {"created_ms": now_ms - 30_000}]})
    source.answers = team_answers(now_ms)
    turn = {"what": "turn", "agent": "Erin", "ids": ["M28"], "at_ms": now_ms, "text": "Mine too."}
    with served(source) as server, opened(browser, server.link, 1200) as page:
        page.wait_for_selector(".message:last-child:has-text('All of them pass.')")
        source.tell(turn)
        page.click(".message:last-child:has-text('Mine too.')")
        page.wait_for_selector("#detail :text('What happened to it')")
        assert source.asked[-1] == ("message", {"id": "M28"})
        head = page.locator(".message .head").last.inner_text()
        assert head.split()[1:] == ["Erin", "→", "Dave", "answer"]


def test_the_person_writes_to_several_and_filters_agents_by_state(browser: Browser) -> None:
    source = FakeSource(team_rows(int(time.time() * 1000)))
    source.answers = team_answers(NOW)

    def sent_to() -> object:
        return next(fields["to"] for name, fields in reversed(source.asked) if name == "send")

    with served(source) as server, opened(browser, server.link, 1200) as page:
        page.click("[data-state=blocked]")
        assert page.locator(".agent").all_inner_texts()[0].startswith("Carol")
        assert page.locator(".agent").count() == 1
        page.click("[data-state='']")
        names = [text.split()[0] for text in page.locator(".agent").all_inner_texts()]
        assert len(names) == 6
        assert page.inner_text("#agents h2").lower() == "5 agents, 1 gone"
        assert names[-2:] == ["Bob", "Frank"]  # who needs somebody comes first, who has gone last
        far = [text.split() for text in page.locator(".far").all_inner_texts()]
        assert far == [["Gil@server"], ["Hal@vps", "away", "2h"]]
        page.keyboard.press("g")
        page.keyboard.type("#build rev")
        assert [text.split()[0] for text in page.locator(".agent").all_inner_texts()] == ["Bob"]
        assert page.locator(".far").count() == 0
        page.keyboard.press("Escape")
        assert page.locator(".agent").count() == 6
        # A message without a receiver asks for one first.
        page.fill("#compose textarea", "hello")
        page.keyboard.press("Enter")
        page.check("[data-to='#build']")
        page.check("[data-to=Erin]")
        page.keyboard.press("Escape")
        page.click("#compose >> text=Send")
        page.wait_for_selector("text=Sent to Bob.")
        assert sent_to() == ["#build", "Erin"]
        page.click("#to")
        page.check("[data-to='*']")
        assert page.is_disabled("[data-to=Erin]")
        page.uncheck("[data-to='*']")
        page.uncheck("[data-to='#build']")
        page.uncheck("[data-to=Erin]")
        page.check("[data-to='*']")
        page.fill("#compose textarea", "all of you")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Sent to Bob.")
        assert sent_to() == ["*"]
        # Ages go on by themselves; a chart is as wide as its window.
        age = page.inner_text("[data-agent=Alice] .age")
        page.wait_for_function(
            "(age) => document.querySelector('[data-agent=Alice] .age').textContent !== age",
            arg=age,
        )
        page.click("#tab-charts")
        page.wait_for_selector("#figures.wide svg")
        page.set_viewport_size({"width": 700, "height": 800})
        page.wait_for_selector("#figures:not(.wide) svg")
        assert page.evaluate("$('charts').scrollWidth <= $('charts').clientWidth")


NOW = 1_700_000_000_000
#: What axe-core finds wrong with what is shown, as lines; by these rules, or by all.
AXE = """async (rules) => (await axe.run(document, {
    resultTypes: ["violations"], ...(rules && {runOnly: rules})})).violations.flatMap(
    (rule) => rule.nodes.map((node) =>
        `${rule.id}: ${node.html.slice(0, 120)} ${node.failureSummary}`))"""


def team_rows(now_ms: int) -> dict[str, Any]:
    """Agents in several states and channels, what waits for the person, and a talk."""
    states = ("busy", "idle", "blocked", "limited", "waiting", "gone")
    names = ("Alice", "Bob", "Carol", "Dave", "Erin", "Frank")
    agents = [
        {"name": name, "state": state, "reason": "asks: Do you want to go on?" if n == 2 else None}
        | {"kind": "claude", "cwd": "/home/me/work", "command": "claude", "unread": n * 700}
        | {"since_ms": now_ms - 40_000 * 30**n, "roles": ["reviewer"] if n == 1 else []}
        | {"channels": ["#build"] if n < 3 else []}
        for n, (name, state) in enumerate(zip(names, states, strict=True))
    ]
    yes_no = [{"key": "yes", "label": "deliver"}, {"key": "no", "label": "refuse all"}]
    item: dict[str, Any] = {
        "since_ms": now_ms - 90_000,
        "until_ms": None,
        "chosen": 0,
        "about": [],
        "details": {},
    }
    items = [
        item
        | {"id": "I1", "agent": "Carol", "kind": "question", "what": "Do you want to go on?"}
        | {"choices": [{"key": "1", "label": "Yes"}, {"key": "2", "label": "No, and tell me why"}]},
        item
        | {"id": "I2", "agent": "Alice", "kind": "approval", "what": "rm -rf build"}
        | {"choices": yes_no},
        item
        | {"id": "I3", "agent": "Dave", "kind": "held", "what": "look at this again"}
        | {"choices": yes_no, "details": {"count": 9940, "to": ["Erin"]}},
    ]
    messages = [
        {"id": f"M{n}", "seq": n, "from": names[n % 5], "from_kind": "agent", "to": to}
        | {"body": "Please look at the tests of the parser. " * (1 + n % 4), "state": state}
        | {"created_ms": now_ms - 60_000 * (30 - n), "channel": None}
        for n in range(30)
        for to, state in [(names[(n + 1) % 5] if n % 7 else "me", "seen" if n % 3 else "queued")]
    ]
    told = {"agents": agents, "items": items, "messages": messages, "more": False, "me": "me"}
    elsewhere = [
        {"name": "Gil@server", "here": True, "seen_ms": now_ms},
        {"name": "Hal@vps", "here": False, "seen_ms": now_ms - 7_200_000},
    ]
    answers = [{"asked": "M29", "from": "Alice", "to": "Erin", "body": "They pass."}]
    told |= {"answers": [one | {"created_ms": now_ms} for one in answers]}
    return told | {"waiting": waiting_words(items), "elsewhere": elsewhere}


def team_answers(now_ms: int) -> dict[str, dict[str, Any]]:
    """What the page is told when it asks for something of ``team_rows``."""
    line = [["❯ ", {"fg": 6, "bold": True}], ["make test", {}], ["  … 3 of 12", {"fg": 8}]]
    title = [["╭" + "─" * 98 + "╮", {"fg": 4}]]
    edge = [["│ ", {"fg": 4}], ["Update".ljust(96), {"fg": 2}], [" │", {"fg": 4}]]
    spent = {"input": 90_000, "output": 12_000, "cached": 800_000, "written": 4000, "money": 1.5}
    steps = [
        {"at_ms": now_ms, "what": "said", "who": "Bob", "state": "", "text": "said it, stored"},
        {"at_ms": now_ms + 90, "what": "state", "who": "Carol", "state": "seen", "text": "proof"},
    ]
    change = {"time": "2026-01-02T03:04:05Z", "agent": "Bob", "kind": "change", "intent": "I-1"}
    return {
        "message": {
            "message": {"id": "M1", "from": "Bob", "body": "Please look.", "created_ms": now_ms}
            | {"from_kind": "agent", "deliveries": [{"to": "Carol"}]},
            "steps": steps,
        },
        "screen": {"cols": 100, "rows": 30, "cursor": [4, 29], "lines": []}
        | {"spans": [title, *[edge] * 27, title, line]},
        "figures": {"since_ms": now_ms - 86_400_000, "now_ms": now_ms, "bucket_ms": 1_800_000}
        | {"sent": [[name, n * 7 % 48, n] for n in range(1, 40) for name in ("Alice", "Bob")]}
        | {"states": {"seen": 950, "queued": 12, "held": 9940}}
        | {"spent": [spent | {"agent": name, "unpriced": []} for name in ("Alice", "Bob")]}
        | {"latency": {"Alice": {"number": 9, "median_ms": 900, "p95_ms": 7000}}},
        "traces": {
            "projects": [
                {"root": "/home/me/work", "problem": "", "lines": [
                    change | {"what": "src/a.py", "words": "3 lines"},
                    change | {"kind": "refusal", "what": "src/b.py", "words": "not in its scope"},
                ]}
            ]
        },
        "send": {"id": "M99", "deliveries": [{"to": "Bob", "state": "queued", "reason": None}]},
    }  # fmt: skip


@pytest.mark.parametrize("width", [390, 1200])
def test_axe_core_finds_nothing_wrong_with_any_view(browser: Browser, width: int) -> None:
    pytest.importorskip("axe_playwright_python")
    axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
    source = FakeSource(team_rows(NOW))
    source.answers = team_answers(NOW)
    wrong: list[str] = []

    def check(view: str) -> None:
        # What is dark differs in its colours alone.
        schemes: tuple[tuple[Literal["light", "dark"], list[str] | None], ...]
        schemes = (("light", None), ("dark", ["color-contrast"]))
        for scheme, rules in schemes:
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            shoot(page, f"{view}-{width}-{scheme}")
            wrong.extend(f"{view}, {scheme}: {one}" for one in page.evaluate(AXE, rules))
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            wrong.append(f"{view} is {wide} pixels wide")

    with served(source) as server, opened(browser, server.link, width, 844) as page:
        page.evaluate(axe)
        page.wait_for_selector(".message", state="attached")
        for tab in ("waiting", "agents", "traffic", "charts", "traces"):
            if page.is_visible(f"#tab-{tab}"):
                page.click(f"#tab-{tab}")
                page.wait_for_selector(f"#{tab} > * >> nth=1")
                check(tab)
        page.click("#tab-traffic")
        page.click("#to")
        check("receivers")
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.id") == "to"
        page.click(".message >> nth=-1")
        page.wait_for_selector("#detail ol.path li")
        check("message")
        page.click("#detail >> text=Write to Bob")
        page.wait_for_selector(".screen .cursor")
        check("agent")
        page.keyboard.press("?")
        check("keys")
        page.keyboard.press("Escape")
        fits = "parseFloat(document.querySelector('.screen pre').style.fontSize)"
        small = page.evaluate(fits)
        assert small >= 9  # it can be read; what has no room is scrolled to
        page.keyboard.press("f")
        check("full")
        if width > 1000:
            assert page.evaluate(fits) > small * 1.4
        page.click("[aria-label='Larger text']")
        assert page.evaluate(fits) > small * 1.1
        page.keyboard.press("0")  # all of it
        all_of_it = "(box => box.scrollWidth <= box.clientWidth)(document.querySelector('.screen'))"
        assert page.evaluate(all_of_it)
        page.keyboard.press("Escape")  # leaves the full size, then the agent
        assert page.is_visible("#detail >> text=Full size")
        page.evaluate("close_('this page’s key is good no more')")
        check("closed")
        # A new home.
        source.everything = {"agents": [], "items": [], "messages": [], "more": False, "me": "me"}
        page.goto("about:blank")
        page.goto(server.link)
        page.wait_for_selector("text=relay spawn --name Bob")
        page.evaluate(axe)
        check("empty")
    assert wrong == []
