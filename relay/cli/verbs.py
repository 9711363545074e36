"""The verbs: which module has each, and what it does in a line.

A module has ``add(verbs)``, which declares its verbs. Only the one that is asked for is imported.
"""

from __future__ import annotations

from relay.cli.parser import Parser

#: name -> (module of this folder, what the verb does).
VERBS = {
    "console": ("console_verb", "see all agents and what they say, and take part; also: relay"),
    "wrap": ("wrap", "run a program as an agent that others can write to"),
    "spawn": ("spawn_verbs", "start an agent without a terminal; it outlives this one"),
    "attach": ("spawn_verbs", "look at a spawned agent's terminal, and type into it"),
    "resume": ("spawn_verbs", "bring agents back, after a reboot, each in its last conversation"),
    "release": ("spawn_verbs", "end an agent in order: its hooks, TERM, KILL"),
    "send": ("send", "write to an agent or a person"),
    "ask": ("send", "ask an agent, and print its answer"),
    "watch": ("watch_verbs", "what happens, as it happens: messages, receipts, agents"),
    "wait": ("watch_verbs", "wait until an agent is done, blocked or gone, or has answered"),
    "inbox": ("messages", "messages to you; reading them marks them as seen"),
    "sent": ("messages", "the messages you sent, and how far they are"),
    "cancel": ("messages", "withdraw a message before it is delivered"),
    "show": ("messages", "one message and its deliveries"),
    "history": ("messages", "all messages, oldest first"),
    "ingest": ("ingest", "bring in what happened elsewhere: a mail, a webhook, a chat message"),
    "event": ("event_verbs", "your own tags, flags and status of stored events"),
    "automation": ("automation_verbs", "functions that relay runs for events or by the clock"),
    "person": ("person_verbs", "who is behind the addresses of mails and chats: add, merge, list"),
    "ledger": ("ledger_verbs", "query everything stored with SQL, export it, tidy it up"),
    "held": ("held", "messages between agents that wait for your decision"),
    "allow": ("held", "let held messages go on"),
    "refuse": ("held", "let held messages fail"),
    "intent": ("intent_verbs", "what agents may change in a governed project, and for what"),
    "approve": ("govern_verbs", "calls of agents that wait for your yes or no"),
    "govern": ("govern_verbs", "whether agents need an intent to write here; off and on"),
    "peek": ("answer_verbs", "the screen of an agent, as it is now"),
    "transcript": ("answer_verbs", "what an agent was asked and said in its last turns"),
    "items": ("answer_verbs", "what waits for you: questions of agents, approvals, held messages"),
    "answer": ("answer_verbs", "answer what an agent asks, from where you are"),
    "interrupt": ("answer_verbs", "stop the turn that an agent is in"),
    "channel": ("channel_verbs", "groups that you and agents write to: join, leave, history"),
    "presence": ("channel_verbs", "of whose coming and going an agent hears"),
    "whoami": ("channel_verbs", "who you are here: you, or the agent you are inside of"),
    "status-line": ("channel_verbs", "one line for tmux, a prompt or Claude Code's statusLine"),
    "agents": ("status", "the agents that are running, and those that have ended"),
    "status": ("status", "the broker and every agent, and what is wrong with them"),
    "web": ("web_verb", "the agents and their messages as a page in your browser"),
    "broker": ("broker_verbs", "the process behind it all, and what personas have to do"),
    "up": ("team_verbs", "start the agents that relay.yaml names"),
    "down": ("team_verbs", "end them; you are asked what becomes of their worktrees"),
    "cost": ("cost_verb", "what agents cost: tokens and money by agent, day or task"),
    "init": ("init_verb", "write a commented relay.config.py here; --governed: intents"),
    "trust": ("config_verbs", "let a configuration or hook file run with its present content"),
    "config": ("config_verbs", "show or check the configuration"),
    "hooks": ("hooks_verbs", "the hooks that apply here, trying them out, and how they ran"),
    "memory": ("memory_verbs", "what you and your agents have saved: find, add, move"),
    "notify": ("notify_verb", "a bell and a notice when something needs you"),
    "mcp": ("mcp_verb", "relay's tools for programs that speak MCP, as a server"),
    "agent": ("agent_verbs", "try out what relay can do with a program"),
    "replay": ("replay", "what would fire in a recorded terminal; nothing is sent"),
    "doctor": ("doctor", "what is installed, what works here, what to run next"),
    "completions": ("completions", "the script that completes relay's words in bash, zsh or fish"),
    "help": ("completions", "what a verb does, and its options"),
    "demo": ("demo", "two small wrapped agents talk to each other in this terminal"),
}

#: What people type that know other programs, and the verb that does it here.
MEANT = {
    **dict.fromkeys(("ls", "list", "ps", "who", "peers"), "agents"),
    **dict.fromkeys(("log", "logs", "messages"), "history"),
    **dict.fromkeys(("read", "recv"), "inbox"),
    **dict.fromkeys(("listen", "follow", "tail", "traffic", "monitor"), "watch"),
    **dict.fromkeys(("await", "until"), "wait"),
    **dict.fromkeys(("reply", "tell", "say", "msg", "message", "write", "mail"), "send"),
    **dict.fromkeys(("run", "exec"), "wrap"),
    **dict.fromkeys(("start", "launch"), "spawn"),
    **dict.fromkeys(("kill", "end", "terminate"), "release"),
    **dict.fromkeys(("withdraw", "rm", "delete", "unsend", "abort"), "cancel"),
    **dict.fromkeys(("top", "tui", "ui", "dashboard"), "console"),
    "accept": "allow",
    **dict.fromkeys(("deny", "reject"), "refuse"),
    **dict.fromkeys(("completion", "complete"), "completions"),
    **dict.fromkeys(("setup", "new"), "init"),
    **dict.fromkeys(("remember", "memories"), "memory"),
    **dict.fromkeys(("check", "diagnose"), "doctor"),
    **dict.fromkeys(("intents", "scope"), "intent"),
    **dict.fromkeys(("automations", "cron", "schedule"), "automation"),
    "stop": "broker",
    "version": "--version",
}

#: Verbs and options that relay once had, and what to use now.
GONE = {
    "replay --source": "a recording is always heard by the screen; leave the option out",
    "agent learn": "relay agent check says what fails; docs/profiles.md shows how to write a"
    " profile of 15 to 45 lines",
}

#: What the exit status of a verb says; ``wrap`` ends with that of its program.
MEANINGS_OF_STATUS = {
    0: "done",
    1: "failed",
    2: "a mistake in the command line",
    3: "no such agent, message or name",
    4: "not delivered, or refused",
    5: "the time was up",
}

#: ``relay --help``.
HELP = """\
usage: relay            the console: what goes on between agents, live
       relay VERB …

Wrap command-line agents so that they can talk to each other.

options:
  -h, --help  show this help message and exit
  --version   show program's version number and exit

examples:
  relay wrap --name Bob -- claude     run an agent that others can write to
  relay send Bob "run the tests"      write to it from any shell
  relay send Bob --wait=60 "ready?"   … and wait until Bob has seen it
  relay agents                        who is there
  relay inbox --follow                what agents write to you, as it comes

verbs:
""" + "\n".join(f"  {name:<12} {text}" for name, (_, text) in VERBS.items())


def group_of(name: str) -> Parser:
    """The verbs of the module that has ``name``, declared."""
    verbs = Parser("relay")
    __import__(f"relay.cli.{VERBS[name][0]}", fromlist=["add"]).add(verbs)
    return verbs


def verb(verbs: Parser, name: str, examples: str = "", description: str = "") -> Parser:
    """Declare a verb; ``examples`` are indented by two spaces."""
    text = VERBS[name][1]
    said = description or f"{text[0].upper()}{text[1:]}."
    if examples:
        said = f"examples:\n  {examples}\n\n{said}"
    return verbs.add_parser(name, description=said)
