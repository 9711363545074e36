"""The verbs: which module has each, and what it does in a line.

A module has ``add(verbs)``, which declares its verbs. Only the one that is asked for is imported. A
feature has its verbs in ``VERBS`` of its package, in the same form; they are looked for only where
the kernel has no verb of that name, and for the help.
"""

from __future__ import annotations

import os

from relay.cli.parser import Parser

#: name -> (module of this folder, what the verb does).
VERBS = {
    "wrap": ("wrap", "run a program as an agent that others can write to"),
    "spawn": ("spawn_verbs", "start an agent in the background; relay attach shows it"),
    "attach": ("spawn_verbs", "open a spawned agent's terminal: look, and type"),
    "resume": ("spawn_verbs", "bring agents back after a reboot, each in its last conversation"),
    "release": ("spawn_verbs", "end an agent: its hooks run, then TERM, then KILL"),
    "send": ("send", "write to an agent or a person"),
    "ask": ("send", "ask an agent, and print its answer"),
    "watch": ("watch_verbs", "follow what happens: messages, receipts, agents"),
    "wait": ("watch_verbs", "wait until an agent is idle, blocked or gone, or has answered"),
    "inbox": ("messages", "read the messages to you; this marks them as seen"),
    "sent": ("messages", "list the messages you sent, and how far each has got"),
    "cancel": ("messages", "withdraw a message before it is delivered"),
    "show": ("messages", "show one message and its deliveries"),
    "history": ("messages", "list or search all messages, oldest first"),
    "ledger": ("ledger_verbs", "query everything stored with SQL, export it, tidy it up"),
    "peek": ("answer_verbs", "print an agent's screen as it is now"),
    "transcript": ("answer_verbs", "print what an agent was asked and said in its last turns"),
    "items": ("answer_verbs", "list what waits for you: questions, approvals, held messages"),
    "answer": ("answer_verbs", "answer what waits for you: with a choice, yes or no"),
    "reload": ("answer_verbs", "let running agents use a newly trusted configuration"),
    "interrupt": ("answer_verbs", "stop the turn that an agent is in"),
    "agents": ("status", "list the agents: those that run, and those that have ended"),
    "status": ("status", "show how the agents and the broker are, and what is wrong"),
    "broker": ("broker_verbs", "manage the background process that stores and delivers messages"),
    "init": ("init_verb", "write a commented relay.config.py (or relay.yaml) here"),
    "trust": ("config_verbs", "allow a configuration or hook file to run as it is now"),
    "config": ("config_verbs", "show or check the configuration"),
    "hooks": ("hooks_verbs", "list and test the hooks that apply here, switch them, see their log"),
    "doctor": ("doctor", "check what is installed, what works here, what to run next"),
    "completions": ("help_verbs", "print the completion script for bash, zsh or fish"),
    "help": ("help_verbs", "explain a command, or print the whole reference"),
    "demo": ("demo", "watch two small agents talk to each other in this terminal"),
}

#: The verbs' titles in ``relay --help``. A feature names the one of its verbs in ``GROUP``.
GROUPS = {
    "every day": (
        *("wrap", "spawn", "attach", "send", "ask"),
        *("inbox", "items", "answer", "agents", "status"),
    ),
    "agents": ("resume", "release", "peek", "transcript", "interrupt", "reload", "wait"),
    "messages": ("watch", "sent", "cancel", "show", "history"),
    "what agents do": ("hooks", "ledger"),
    "set-up": ("init", "trust", "config", "doctor", "broker", "completions", "help", "demo"),
}
#: What people type who know other programs, and what runs then.
ALIASES = {
    **dict.fromkeys(("ls", "ps"), "agents"),
    "logs": "transcript",
    **dict.fromkeys(("stop", "kill"), "release"),
}
#: What else they type, and the verb that they are told.
MEANT = {
    **dict.fromkeys(("list", "who", "peers"), "agents"),
    **dict.fromkeys(("log", "messages"), "history"),
    **dict.fromkeys(("read", "recv"), "inbox"),
    **dict.fromkeys(("listen", "follow", "tail", "traffic", "monitor"), "watch"),
    **dict.fromkeys(("await", "until"), "wait"),
    **dict.fromkeys(("reply", "tell", "say", "msg", "message", "write", "mail"), "send"),
    **dict.fromkeys(("run", "exec"), "wrap"),
    **dict.fromkeys(("start", "launch"), "spawn"),
    **dict.fromkeys(("end", "terminate"), "release"),
    **dict.fromkeys(("withdraw", "rm", "delete", "unsend", "abort"), "cancel"),
    **dict.fromkeys(("top", "tui", "ui", "dashboard"), "console"),
    **dict.fromkeys(("accept", "deny", "reject"), "answer"),
    **dict.fromkeys(("completion", "complete"), "completions"),
    **dict.fromkeys(("setup", "new"), "init"),
    **dict.fromkeys(("team", "teams"), "up"),
    "restart": "reload",
    **dict.fromkeys(("remember", "memories"), "memory"),
    **dict.fromkeys(("check", "diagnose"), "doctor"),
    **dict.fromkeys(("intents", "scope"), "intent"),
    **dict.fromkeys(("automations", "cron", "schedule"), "automation"),
    "version": "--version",
}

#: Verbs that relay had, and what to use instead.
GONE = dict.fromkeys(
    ("held", "allow", "refuse", "approve"),
    "relay items lists what waits for you; relay answer ID yes (or no) answers it",
)

#: What the exit status of a verb says; ``wrap`` ends with that of its program.
MEANINGS_OF_STATUS = {
    0: "done",
    1: "failed",
    2: "a mistake in the command line",
    3: "no such agent, message or name",
    4: "not delivered, or refused",
    5: "the time was up",
}

_HELP = """\
Wrap command-line agents so that they can talk to each other.

usage: relay                open the console: agents and messages, live
       relay COMMAND …

examples:
  relay wrap --name Bob -- claude     run an agent that others can write to
  relay send Bob "run the tests"      write to it from any shell
  relay ask Bob "which tests fail?"   write, wait, and print the answer
  relay agents                        who is there
  relay inbox --follow                what agents write to you, as it comes

"""
_OPTIONS = """
options:
  -h, --help   show this help
  --version    show the version
"""


def help_text() -> str:
    titled = {title: list(names) for title, names in GROUPS.items()}
    for name, group in _of_features().items():
        titled.setdefault(group, []).append(name)
    verbs = every()
    lines = []
    for title, names in titled.items():
        lines += ["", f"{title}:", *(f"  {name:<12} {verbs[name]}" for name in names)]
    meant = {
        name: " and ".join(word for word in ALIASES if ALIASES[word] == name)
        for name in ALIASES.values()
    }
    also = ", ".join(f"{words} for {name}" for name, words in meant.items())
    lines += [_OPTIONS, f"Also understood: {also}. relay COMMAND --help explains a command."]
    return _HELP + "\n".join(lines[1:])


def _of_features() -> dict[str, str]:
    """The verbs of features, each with the title of its group."""
    from relay.core.features import modules

    return {
        name: getattr(package.module, "GROUP", "more")
        for package in modules("")
        for name in getattr(package.module, "VERBS", {})
        if name not in VERBS
    }


def every() -> dict[str, str]:
    """All verbs, those of features too, each with what it does."""
    from relay.core.features import modules

    verbs = {name: text for name, (_, text) in VERBS.items()}
    for package in modules(""):
        for name, (_, text) in getattr(package.module, "VERBS", {}).items():
            verbs.setdefault(name, text)
    return verbs


def _find(name: str) -> tuple[str, str] | None:
    """(dotted module, what the verb does); None: there is no such verb."""
    if name in VERBS:
        module, text = VERBS[name]
        return f"relay.cli.{module}", text
    if row := _of_own_feature(name):
        return row
    from relay.core.features import modules

    for package in modules(""):
        row = getattr(package.module, "VERBS", {}).get(name)
        if row is not None:
            return f"{package.feature.package}.{row[0]}", row[1]
    return None


def _of_own_feature(name: str) -> tuple[str, str] | None:
    """The same of a feature of relay's with the verb's own name: to look at all takes longer than
    some verbs do."""
    package = f"relay.features.{name}"
    path = os.path.join(os.path.dirname(os.path.dirname(__file__)), "features", name, "__init__.py")
    if not name.isidentifier() or not os.path.isfile(path):
        return None
    row = getattr(__import__(package, fromlist=["VERBS"]), "VERBS", {}).get(name)
    return None if row is None else (f"{package}.{row[0]}", row[1])


def is_verb(name: str) -> bool:
    return _find(name) is not None


def group_of(name: str) -> Parser:
    """The verbs of the module that has ``name``, declared."""
    verbs = Parser("relay")
    row = _find(name)
    assert row is not None
    __import__(row[0], fromlist=["add"]).add(verbs)
    return verbs


def verb(verbs: Parser, name: str, examples: str = "", description: str = "") -> Parser:
    """Declare a verb; ``examples`` stand on a line each."""
    row = _find(name)
    text = "" if row is None else row[1]
    said = description or f"{text[:1].upper()}{text[1:]}."
    return verbs.add_parser(name, description=said, examples=examples)
