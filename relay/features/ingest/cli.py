"""What reading in adds to the kernel's verbs: see relay.cli.door."""

from __future__ import annotations

from typing import Any

from relay.cli.parser import Parser


def add_parts(name: str, group: Parser) -> None:
    if name != "ledger":
        return
    text = "import the transcripts of Claude Code and Codex"
    ingest = group.add_parser("ingest", help=text)
    ingest.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="files or folders (default: where these programs keep them)",
    )
    ingest.add_argument("--source", choices=("claude", "codex"), help="only that program's")
    ingest.add_argument("--json", action="store_true", help="print JSON")
    ingest.set_defaults(run=_ingest)


def _ingest(options: Any) -> int:
    from relay.features.ingest.ledger_ingest import ingest_verb

    return ingest_verb(options)
