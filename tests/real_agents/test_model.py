"""The scripted model itself, by each API, without any agent."""

from __future__ import annotations

import http.client
import json
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.real_agents.model import Fail, Gate, Read, Say, ScriptedModel, Shell, Write
from tests.support import wait_until

COMMAND = {"type": "object", "properties": {"command": {"type": "string"}}}
USER, OWN, RESULT = "say it", "I run it.", "42 files"


@dataclass(frozen=True)
class Case:
    """One API: where it is asked, a first request, the one after the tool, and without tools."""

    path: str
    first: dict[str, Any]
    later: dict[str, Any]

    @property
    def side(self) -> dict[str, Any]:
        return {key: value for key, value in self.first.items() if key != "tools"}


def anthropic() -> Case:
    tools = [{"name": "Bash", "input_schema": COMMAND}]
    user = {"role": "user", "content": f"<system-reminder>x</system-reminder>{USER}"}
    use = {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}
    own = {"role": "assistant", "content": [{"type": "text", "text": OWN}, use]}
    result = {"type": "tool_result", "tool_use_id": "t", "content": RESULT}
    head = {"model": "m", "system": "be good", "tools": tools, "stream": True}
    later = [user, own, {"role": "user", "content": [result]}]
    return Case("/v1/messages", {**head, "messages": [user]}, {**head, "messages": later})


def chat() -> Case:
    tools = [{"type": "function", "function": {"name": "bash", "parameters": COMMAND}}]
    start = [{"role": "system", "content": "be good"}, {"role": "user", "content": USER}]
    own = {"role": "assistant", "content": OWN, "tool_calls": []}
    result = {"role": "tool", "tool_call_id": "t", "content": RESULT}
    head = {"model": "m", "tools": tools, "stream": True}
    later = [*start, own, result]
    return Case("/v1/chat/completions", {**head, "messages": start}, {**head, "messages": later})


def responses() -> Case:
    tools = [{"type": "function", "name": "shell", "parameters": COMMAND}]
    user = {"role": "user", "content": [{"type": "input_text", "text": USER}]}
    own = {"role": "assistant", "content": [{"type": "output_text", "text": OWN}]}
    call = {"type": "function_call", "call_id": "t", "name": "shell", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "t", "output": RESULT}
    head = {"model": "m", "instructions": "be good", "tools": tools, "stream": True}
    later = [user, own, call, result]
    return Case("/v1/responses", {**head, "input": [user]}, {**head, "input": later})


def gemini() -> Case:
    function = {"name": "run_shell_command", "parametersJsonSchema": COMMAND}
    user = {"role": "user", "parts": [{"text": USER}]}
    own = {"role": "model", "parts": [{"text": OWN}, {"functionCall": {"name": "f", "args": {}}}]}
    result = {"functionResponse": {"name": "f", "response": {"output": RESULT}}}
    head = {
        "systemInstruction": {"parts": [{"text": "be good"}]},
        "tools": [{"functionDeclarations": [function]}],
    }
    later = [user, own, {"role": "user", "parts": [result]}]
    path = "/v1beta/models/m:streamGenerateContent"
    return Case(path, {**head, "contents": [user]}, {**head, "contents": later})


CASES = [anthropic(), chat(), responses(), gemini()]
each = pytest.mark.parametrize("case", CASES, ids=["anthropic", "chat", "responses", "gemini"])


def post(url: str, path: str, body: dict[str, Any]) -> tuple[int, str]:
    where = urlsplit(url)
    line = http.client.HTTPConnection(where.netloc, timeout=20)
    try:
        line.request("POST", where.path + path, json.dumps(body))
        answer = line.getresponse()
        return answer.status, answer.read().decode()
    finally:
        line.close()


@each
def test_a_request_tells_the_same_by_every_api(case: Case, model: ScriptedModel) -> None:
    model.when(USER, Say("one two three", chunk=4), Shell("ls"))
    model.when_tool(Say("after the tool"))
    url = model.url_for("Bob")
    status, first = post(url, case.path, case.first)
    _, later = post(url, case.path, case.later)
    post(url, case.path, case.side)
    assert status == 200
    assert '"one ' in first
    assert "two" in first
    assert '"ls' in first.replace("\\", "")
    assert "after the" in later
    one, two = model.requests
    assert (one.said, one.after_tool, one.system, one.by) == (USER, False, "be good", "Bob")
    assert len(one.tools) == 1
    assert two.after_tool
    assert RESULT in two.last_text
    assert OWN not in two.last_text
    assert len(model.all_requests) == 3
    assert model.resting


@each
def test_an_answer_may_be_held_in_the_middle(case: Case, model: ScriptedModel) -> None:
    model.when(USER, Say("before after", gate="middle", at=7), Gate("end"))
    heard: list[tuple[int, str]] = []
    asking = threading.Thread(target=lambda: heard.append(post(model.url, case.path, case.first)))
    asking.start()
    wait_until(lambda: model.requests)
    model.open("middle")
    assert not model.resting
    model.open("end")
    asking.join(20)
    assert '"before ' in heard[0][1]
    assert '"after"' in heard[0][1]


@each
def test_a_client_that_hangs_up_at_a_gate_is_noticed(case: Case, model: ScriptedModel) -> None:
    model.when(USER, Gate("never"))
    line = http.client.HTTPConnection(urlsplit(model.url).netloc, timeout=20)
    line.request("POST", case.path, json.dumps(case.first))
    wait_until(lambda: model.requests)
    line.close()
    wait_until(lambda: model.requests[0].aborted)


@each
def test_a_failure_has_its_status(case: Case, model: ScriptedModel) -> None:
    model.when(USER, Fail(529, "too many of us"))
    status, text = post(model.url, case.path, case.first)
    assert status == 529
    assert "too many of us" in text


def test_a_program_without_tools_is_heard_and_may_list_files(model: ScriptedModel) -> None:
    case = chat()
    model.when(USER, Write("/p/a.txt", "body"))
    _, text = post(model.url_for(toolless=True), case.path, {**case.side, "stream": False})
    said = json.loads(text)["choices"][0]["message"]["content"]
    assert said == "\n\n/p/a.txt\n```\nbody\n```\n"
    assert [request.said for request in model.requests] == [USER]


def test_files_are_written_and_read_by_the_shell_where_there_is_no_tool(
    model: ScriptedModel,
) -> None:
    case = responses()
    model.when(USER, Write("/p/a b", "it's"), Read("/p/a b"))
    _, text = post(model.url, case.path, {**case.first, "stream": False})
    calls = [json.loads(item["arguments"])["command"] for item in json.loads(text)["output"]]
    assert calls == ["printf %s 'it'\"'\"'s' >'/p/a b'", "cat '/p/a b'"]
