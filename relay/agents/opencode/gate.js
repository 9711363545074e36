// Asks relay's session about each tool call of the opencode that this is loaded into.
//
// relay names this file for one run, in OPENCODE_CONFIG_CONTENT; docs/agents/opencode.md says what
// for. Where the session cannot be asked a tool does not run. It speaks HTTP by itself: fetch would
// go by the proxies of the environment, and with it the token.
import { connect } from "node:net"

const { RELAY_PORT, RELAY_TOKEN, RELAY_GATES = "" } = process.env
const GATES = new Set(RELAY_GATES.split(","))
// Milliseconds that an answer may take.
const PATIENCE = 600_000
// Calls that are remembered until they end; the oldest are forgotten first.
const CALLS_MAX = 1000

function ask(event) {
  return new Promise((resolve, reject) => {
    const body = Buffer.from(JSON.stringify(event))
    const head = [
      "POST /hook HTTP/1.1",
      "Host: 127.0.0.1",
      `Authorization: Bearer ${RELAY_TOKEN}`,
      "Content-Type: application/json",
      `Content-Length: ${body.length}`,
      "Connection: close",
    ]
    const pieces = []
    const socket = connect(Number(RELAY_PORT), "127.0.0.1", () => {
      socket.write(Buffer.concat([Buffer.from(head.join("\r\n") + "\r\n\r\n"), body]))
    })
    socket.setTimeout(PATIENCE, () => socket.destroy(new Error("no answer in time")))
    socket.on("data", (piece) => pieces.push(piece))
    socket.on("error", reject)
    socket.on("close", () => {
      try {
        resolve(answered(Buffer.concat(pieces)))
      } catch (error) {
        reject(error)
      }
    })
  })
}

function answered(bytes) {
  const end = bytes.indexOf("\r\n\r\n")
  const head = bytes.subarray(0, Math.max(end, 0)).toString("latin1")
  const status = /^HTTP\/1\.1 (\d+)/.exec(head)?.[1]
  const length = Number(/^content-length: *(\d+)/im.exec(head)?.[1])
  const body = bytes.subarray(end + 4)
  if (status !== "200" || body.length !== length) {
    throw new Error(status && status !== "200" ? `status ${status}` : "its answer broke off")
  }
  return JSON.parse(body.toString("utf8"))
}

function added(output, text) {
  if (typeof output.output === "string") output.output += `\n\n${text}`
  else if (Array.isArray(output.content)) output.content.push({ type: "text", text })
}

function replaced(output, text) {
  if (typeof output.output === "string") output.output = text
  else if (Array.isArray(output.content)) output.content = [{ type: "text", text }]
}

function call(name, id, session, tool, input) {
  return {
    hook_event_name: name,
    session_id: session,
    tool_use_id: id,
    tool_name: tool,
    tool_input: input,
  }
}

export const RelayGate = async ({ client }) => {
  const calls = new Map() // what runs now, by call: { tool, args, since, context }
  if (!GATES.has("BeforeTool") && !GATES.has("AfterTool")) return {}

  const stopped = async (session) => {
    await client.session.abort({ path: { id: session } }).catch(() => {})
  }

  const before = async (input, output) => {
    const { tool, sessionID, callID } = input
    let said = {}
    if (GATES.has("BeforeTool")) {
      try {
        said = await ask(call("tool.execute.before", callID, sessionID, tool, output.args))
      } catch (error) {
        throw new Error(`relay cannot tell whether ${tool} may run: ${error.message}`)
      }
      if (said.stop) await stopped(sessionID)
      if (said.deny !== undefined) throw new Error(said.deny)
      if (said.input) Object.assign(output.args, said.input)
    }
    calls.set(callID, { tool, args: output.args, since: Date.now(), context: said.context })
    if (calls.size > CALLS_MAX) calls.delete(calls.keys().next().value)
  }

  const finished = async (id, session, response) => {
    const made = calls.get(id)
    calls.delete(id)
    let said = {}
    if (made && GATES.has("AfterTool")) {
      const event = call("tool.execute.after", id, session, made.tool, made.args)
      const duration = (Date.now() - made.since) / 1000
      // The tool has run: that the session cannot be told changes nothing any more.
      said = await ask({ ...event, tool_response: response, duration }).catch(() => ({}))
      if (said.stop) await stopped(session)
    }
    return { ...said, before: made?.context }
  }

  const after = async (input, output) => {
    const response = output.output ?? output.content ?? null
    const said = await finished(input.callID, input.sessionID, response)
    if (said.output !== undefined) replaced(output, said.output)
    for (const text of [said.before, said.context]) if (text) added(output, text)
  }

  // A tool that fails has no "after".
  const event = async ({ event }) => {
    const part = event.type === "message.part.updated" ? event.properties.part : undefined
    if (part?.type !== "tool" || part.state.status !== "error" || !calls.has(part.callID)) return
    await finished(part.callID, part.sessionID, { error: part.state.error })
  }

  return { "tool.execute.before": before, "tool.execute.after": after, event }
}
