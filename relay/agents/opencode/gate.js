// Asks relay's session about each tool call of the opencode that this is loaded into, and tells it
// of prompts, ends of turns, questions to the person and compactions.
//
// relay names this file for one run, in OPENCODE_CONFIG_CONTENT; docs/agents/opencode.md says what
// for. Where the session cannot be asked a tool does not run. It speaks HTTP by itself: fetch would
// go by the proxies of the environment, and with it the token.
import { connect } from "node:net"

const { RELAY_PORT, RELAY_TOKEN, RELAY_GATES = "" } = process.env
const GATES = new Set(RELAY_GATES.split(","))
// An opencode that this one's tools start has all of that in its environment, too. It asks about its
// tool calls, but its turns are none of this one's. (This may be loaded anew in the same process.)
const { env, pid } = process
env.RELAY_TELLS ||= String(pid)
const TELLS = env.RELAY_TELLS === String(pid)
// Milliseconds that an answer may take.
const PATIENCE = 600_000
// The same for what is only told; until then what is to be told next waits, so much at most.
const TOLD_PATIENCE = 5_000
const UNTOLD_MAX = 100
// Calls that are remembered until they end; the oldest are forgotten first.
const CALLS_MAX = 1000
// Messages of a session that are looked through for the answer.
const LOOK_BACK = 20

function ask(event, patience = PATIENCE) {
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
    socket.setTimeout(patience, () => socket.destroy(new Error("no answer in time")))
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

// What is told goes over in order, and opencode never waits for it. `make` gives the event, or
// nothing; what cannot be told is left out.
let told = Promise.resolve()
let untold = 0

function tell(name, make) {
  if (!TELLS || !GATES.has(name) || untold >= UNTOLD_MAX) return
  untold += 1
  told = told
    .then(() => Promise.race([make(), late()]))
    .then((event) => event && ask(event, TOLD_PATIENCE))
    .catch(() => {})
    .finally(() => (untold -= 1))
}

function late() {
  return new Promise((_, reject) => setTimeout(reject, TOLD_PATIENCE).unref())
}

// What only watches never breaks what it watches.
function watching(act) {
  return async (...given) => {
    try {
      // What it gives is the work that goes on behind it, if any.
      Promise.resolve(act(...given)).catch(() => {})
    } catch {}
  }
}

function remember(map, key, value) {
  map.set(key, value)
  if (map.size > CALLS_MAX) map.delete(map.keys().next().value)
}

function words(parts) {
  return parts
    .filter((part) => part.type === "text" && !part.synthetic)
    .map((part) => part.text)
    .join("\n")
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
    const made = { tool, args: output.args, since: Date.now(), context: said.context }
    remember(calls, callID, made)
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
  const failed = async (part) => {
    if (part.state.status !== "error" || !calls.has(part.callID)) return
    await finished(part.callID, part.sessionID, { error: part.state.error })
  }

  const turns = new Map() // the last prompt of the turn that runs, by session
  const owners = new Map() // whether a session is the person's own, not one of a subagent
  const compactions = new Map() // who wanted the last compaction, by session

  const own = async (id) => {
    if (!owners.has(id)) {
      const { data } = await client.session.get({ path: { id } })
      remember(owners, id, !data?.parentID)
    }
    return owners.get(id)
  }

  const prompted = ({ sessionID }, { parts }) => {
    const prompt = words(parts)
    remember(turns, sessionID, prompt)
    tell("BeforeAgent", async () => {
      const event = { hook_event_name: "chat.message", session_id: sessionID, prompt }
      if (await own(sessionID)) return event
    })
  }

  // A turn that was broken off, or failed, has no answer.
  const rested = (id) => {
    if (!turns.has(id)) return
    const prompt = turns.get(id)
    turns.delete(id)
    tell("AfterAgent", async () => {
      if (!(await own(id))) return
      const { data } = await client.session.messages({ path: { id }, query: { limit: LOOK_BACK } })
      const last = data?.findLast((message) => message.info.role === "assistant")
      if (!last || last.info.error) return
      const response = words(last.parts)
      return { hook_event_name: "session.idle", session_id: id, prompt, prompt_response: response }
    })
  }

  const asked = (type, { sessionID, permission, questions }) => {
    const about = permission ?? questions?.map((one) => one.question).join("\n")
    tell("Notification", () => ({ hook_event_name: type, session_id: sessionID, about }))
  }

  const compacting = ({ sessionID }) => {
    const trigger = compactions.get(sessionID) ?? "auto"
    tell("PreCompress", async () => {
      const event = { hook_event_name: "session.compacting", session_id: sessionID, trigger }
      if (await own(sessionID)) return event
    })
  }

  const happened = ({ event: { type, properties } }) => {
    if (type === "session.idle") rested(properties.sessionID)
    if (type === "permission.asked" || type === "question.asked") asked(type, properties)
    const part = type === "message.part.updated" ? properties.part : undefined
    if (part?.type === "compaction") {
      remember(compactions, part.sessionID, part.auto ? "auto" : "manual")
    }
    if (part?.type === "tool") return failed(part)
  }

  return {
    "tool.execute.before": before,
    "tool.execute.after": after,
    "chat.message": watching(prompted),
    "experimental.session.compacting": watching(compacting),
    event: watching(happened),
  }
}
