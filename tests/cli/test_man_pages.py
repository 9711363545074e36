"""``relay help --man`` and ``--all``: the manual says what the verbs take."""

from __future__ import annotations

from pathlib import Path

from relay.cli.man_pages import parsers
from relay.cli.verbs import every
from tests.cli.fixtures import Run


def test_every_verb_has_a_page_that_names_what_it_takes(relay: Run, tmp_path: Path) -> None:
    relay("help", "--man", str(tmp_path))
    pages = {page.stem: page.read_text() for page in (tmp_path / "man1").iterdir()}
    assert set(pages) == {"relay", *(f"relay-{name}" for name in every())}
    for parser in parsers():
        page = pages["-".join(parser.prog.split()[:2])].replace("\\-", "-")
        assert [
            form for form, _ in parser.taken() if f".B {form}\n".isascii() and form not in page
        ] == []
    # No line is a request but those of the page's own, and nothing is lost in an escape.
    own = (".TH", ".SH", ".TP", ".PP", ".B", ".BR", ".nf", ".fi")
    lines = [line for page in pages.values() for line in page.splitlines()]
    assert {line.split()[0] for line in lines if line.startswith((".", "'"))} <= set(own)


def test_what_cannot_be_written_is_said(relay: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = relay("help", "--man", str(tmp_path / "file"))
    assert done.returncode == 1 and "cannot write" in done.stderr
