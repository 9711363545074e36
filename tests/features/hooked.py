"""A small agent with Claude Code's hooks, in a terminal: it does what its person types.

Each line that counts is JSON: {"say": text}, or a tool's call {"tool": name, "input": {…}}. It
asks its hooks as the real one does, shows what they answer, and does what it may: Write, Read and
Bash (by CLAUDE_CODE_SHELL where its "description" is "held"). With "until" it tells of the end of
the call when there is such a file. ``RAN`` is shown before that, ``DONE n`` ends its n-th
turn.
"""

from __future__ import annotations

import sys
from pathlib import Path

from relay.agents.claude.launch import OLDEST

_PROGRAM = """
import json, os, shlex, subprocess, sys, tempfile, time, urllib.request

settings = json.loads(sys.argv[sys.argv.index("--settings") + 1])["hooks"]
[url] = {one["hooks"][0]["url"] for one in settings["PreToolUse"]}
token = os.environ["RELAY_TOKEN"]
PWD = os.path.join(tempfile.gettempdir(), f"claude-{os.getpid()}-cwd")


def hook(name, **fields):
    event = {"hook_event_name": name, "session_id": "s1", "cwd": os.getcwd(), **fields}
    request = urllib.request.Request(url, json.dumps(event).encode())
    request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or b"{}")


def run(tool, given):
    if tool == "Write":
        with open(given["file_path"], "w") as file:
            file.write(given["content"])
        return "written"
    if tool == "Read":
        with open(given["file_path"]) as file:
            return file.read()
    if given.get("description") == "held":  # as the real one runs each call, and one at its start
        shell = os.environ["CLAUDE_CODE_SHELL"]
        subprocess.run([shell, "-c", "-l", "SNAPSHOT_FILE=/dev/null; true"])
        line = f"eval {shlex.quote(given['command'])} < /dev/null && pwd -P >| {PWD}"
        done = subprocess.run([shell, "-c", line], capture_output=True, text=True)
        return done.stdout + done.stderr + open(PWD).read()
    done = subprocess.run(given["command"], shell=True, capture_output=True, text=True)
    return done.stdout + done.stderr


def call(turn, tool, given, until):
    fields = {"tool_name": tool, "tool_input": given, "tool_use_id": f"t{turn}"}
    said = hook("PreToolUse", **fields).get("hookSpecificOutput", {})
    if said.get("permissionDecision") == "deny":
        print("REFUSED", said["permissionDecisionReason"], flush=True)
        return
    given = said.get("updatedInput", given)
    result = run(tool, given)
    print("RAN", flush=True)
    while until and not os.path.exists(until):
        time.sleep(0.02)
    hook("PostToolUse", **{**fields, "tool_input": given}, tool_response=result)
    print("RESULT", result, flush=True)


hook("SessionStart", source="startup")
print("READY", flush=True)
for turn, line in enumerate((one for one in sys.stdin if one.startswith("{")), 1):
    what = json.loads(line)
    hook("UserPromptSubmit", prompt=line, prompt_id=f"p{turn}")
    if "say" in what:
        told = {"message_id": f"m{turn}", "index": 0, "delta": what["say"], "final": True}
        hook("MessageDisplay", prompt_id=f"p{turn}", **told)
    if "tool" in what:
        call(turn, what["tool"], what["input"], what.get("until"))
    hook("Stop", prompt_id=f"p{turn}", last_assistant_message=what.get("say", ""))
    print("DONE", turn, flush=True)
"""


def hooked_agent(folder: Path) -> str:
    """Write the program below ``folder``, of a version that relay knows; its path."""
    place = folder / ".".join(map(str, OLDEST))
    place.mkdir(parents=True)
    program = place / "claude"
    program.write_text(f"#!{sys.executable}\n{_PROGRAM}")
    program.chmod(0o755)
    return str(program)
