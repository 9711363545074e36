"""The plugin, loaded by Node.js: what only watches opencode never breaks it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import relay.agents.opencode
from tests.e2e.test_programs import node

#: A rejected promise that nobody takes ends Node.js.
ODD = """
const { RelayGate } = await import(process.argv[1])
const session = {
  get: async () => { throw new Error("gone") },
  messages: async () => ({}),
}
const { event, ...hooks } = await RelayGate({ client: { session } })
const happened = (type, properties) => event({ event: { type, properties } })
await hooks["chat.message"]({ sessionID: "a" }, {})
await hooks["chat.message"]({ sessionID: "a" }, { parts: [{ type: "text", text: "hi" }] })
await hooks["experimental.session.compacting"]()
await happened("session.idle", { sessionID: "a" })
await happened("session.idle")
await happened("message.part.updated")
await happened("message.part.updated", { part: { type: "tool", callID: "c" } })
await event({})
await new Promise((resolve) => setImmediate(resolve))
console.log("as ever")
"""


def test_events_that_are_not_as_they_should_be_leave_nothing_behind() -> None:
    plugin = Path(relay.agents.opencode.__file__).with_name("gate.js")
    env = {
        "RELAY_PORT": "1",
        "RELAY_TOKEN": "t",
        "RELAY_GATES": "BeforeTool,AfterTool,BeforeAgent,AfterAgent,PreCompress",
    }
    line = [node(), "--no-warnings", "--input-type=module", "-e", ODD, str(plugin)]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("as ever\n", "", 0)
