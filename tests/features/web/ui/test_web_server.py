"""What the web page's server refuses over real sockets: other pages, hosts and processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any, cast

import pytest

from relay.features.web.web_data import path_steps
from relay.protocol.message_ops import FullMessage
from tests.features.web.ui.page_source import FakeSource, Served, served
from tests.support import wait_until

KNOWN = {"figures": {"said": "\u202e\x1b[2J\n@relay:Bob hi"}}
NOTHING: dict[str, Any] = {"agents": [], "items": [], "messages": [], "more": False, "me": "me"}


@pytest.fixture
def page() -> Iterator[Served]:
    source = FakeSource(NOTHING)
    source.answers.update(KNOWN)
    with served(source) as page:
        yield page


def post(page: Served, name: str, body: object, **headers: str) -> tuple[int, Any]:
    """The status and JSON of one request, as the page itself would make it but for ``headers``."""
    given = {
        "host": f"127.0.0.1:{page.port}",
        "origin": page.origin,
        "content-type": "application/json",
        **{key.replace("_", "-"): value for key, value in headers.items()},
    }
    connection = HTTPConnection("127.0.0.1", page.port, timeout=20)
    try:
        connection.request("POST", f"/api/{name}", json.dumps(body), given)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def key_of(page: Served) -> str:
    status, answer = post(page, "key", {"code": page.link.split("#")[1]})
    assert status == 200
    return f"Bearer {answer['key']}"


def test_a_link_is_good_once_and_what_it_gives_opens_the_rest(page: Served) -> None:
    first = page.link.split("#")[1]
    key = key_of(page)
    assert post(page, "key", {"code": first})[0] == 401
    assert len(page.links) == 2
    status, answer = post(page, "figures", {}, authorization=key)
    # Nothing that hides or turns text reaches the page; a pattern stays, as nobody hears it there.
    assert (status, answer) == (200, {"said": "\\u202e^[[2J\n@relay:Bob hi"})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"host": "relay.example:80"}, 403, id="rebound-name"),
        pytest.param({"host": "127.0.0.1.example"}, 403, id="longer-name"),
        pytest.param({"host": "localhost@relay.example"}, 403, id="name-with-user"),
        pytest.param({"origin": "https://relay.example"}, 403, id="other-page"),
        pytest.param({"origin": "null"}, 403, id="sandboxed-page"),
        pytest.param({"origin": "http://127.0.0.1:1"}, 403, id="page-of-another-port"),
        pytest.param({"sec_fetch_site": "same-site"}, 403, id="asked-by-another-port"),
        pytest.param({"content_type": "text/plain"}, 415, id="form"),
        pytest.param({"authorization": "Bearer x"}, 401, id="wrong-key"),
        pytest.param({"authorization": ""}, 401, id="no-key"),
    ],
)
def test_what_another_page_could_ask_is_refused(
    page: Served, headers: dict[str, str], status: int
) -> None:
    key = key_of(page)
    assert post(page, "figures", {}, **{"authorization": key, **headers})[0] == status
    assert page.source.asked == []


def test_a_link_may_stand_on_any_page_and_what_it_leads_to_says_nothing(page: Served) -> None:
    connection = HTTPConnection("127.0.0.1", page.port, timeout=20)
    connection.request("GET", "/", headers={"sec-fetch-site": "cross-site"})
    answer = connection.getresponse()
    policy = answer.headers["content-security-policy"]
    assert answer.status == 200 and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert answer.headers["x-frame-options"] == "DENY"
    connection.close()


def test_what_fails_is_told_the_person_without_a_traceback(
    page: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page.source, "answers", None)
    assert post(page, "figures", {}, authorization=key_of(page))[0] == 500
    assert "failed" in page.warnings[0]
    assert capsys.readouterr().err == ""


def test_through_a_tunnel_its_own_page_may_ask(page: Served) -> None:
    tunnel = {"host": "localhost:8765", "origin": "http://localhost:8765"}
    assert post(page, "figures", {}, authorization=key_of(page), **tunnel)[0] == 200


#: Asks with a key that it has read somewhere, as a process with this name or of this user.
THIEF = """
import encodings.idna, http.client, os, sys
what, port, key = sys.argv[1:]
if what == "agent":
    open("/proc/self/comm", "w").write("relay:0")
else:
    os.setuid(65534)
asked = http.client.HTTPConnection("127.0.0.1", int(port))
asked.request("POST", "/api/figures", "{}", {
    "Authorization": key, "Content-Type": "application/json"})
print(asked.getresponse().status)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel does not tell")
@pytest.mark.parametrize("what", ["agent", "another-user"])
def test_a_stolen_key_ends_all_keys_and_the_person_is_told(page: Served, what: str) -> None:
    if what != "agent" and os.geteuid() != 0:
        pytest.skip("only root can be another user")
    key = key_of(page)
    argv = [sys.executable, "-c", THIEF, what, str(page.port), key]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "403", done.stderr
    wait_until(lambda: len(page.links) == 3, what="the new link")
    assert len(page.warnings) == 1 and "has shown a key of this page" in page.warnings[0]
    assert post(page, "figures", {}, authorization=key)[0] == 401
    assert page.source.asked == []
    assert post(page, "figures", {}, authorization=key_of(page))[0] == 200


def test_the_way_of_a_message_is_in_order() -> None:
    message = {
        "created_ms": 100,
        "from": "Alice",
        "via": None,
        "deliveries": [
            {"to": "Bob", "state": "seen", "reason": None, "proof": "read", "attempts": 2}
            | {"decided": "me, pts/1", "delivering_ms": 130, "submitted_ms": 140}
            | {"updated_ms": 150},
            {"to": "Carol", "state": "held", "reason": "a loop", "proof": None, "attempts": 0}
            | {"decided": None, "delivering_ms": None, "submitted_ms": None, "updated_ms": 110},
        ],
    }
    hook = {"at_ms": 120, "hook": "h", "of": "Bob", "event": "E", "seconds": 0.013, "error": ""}
    steps = path_steps(cast(FullMessage, message), [{**hook, "decision": "allow"}])
    assert [(one["at_ms"], one["what"], one["who"], one["text"]) for one in steps] == [
        (100, "said", "Alice", "said it, stored"),
        (110, "state", "Carol", "a loop"),
        (120, "hook", "Bob", "E: h, allow, 13 ms"),
        (130, "delivering", "Bob", "begun, try 2"),
        (140, "submitted", "Bob", "the agent has it"),
        (150, "state", "Bob", "proof: read, me, pts/1"),
    ]
