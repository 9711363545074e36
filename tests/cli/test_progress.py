"""The bar of the verbs that take a while."""

from __future__ import annotations

import io

import pytest

from relay.cli.progress import EVERY, Bar, line


@pytest.mark.parametrize(
    ("done", "total", "width", "expected"),
    [
        (0, 10, 20, "[............] 0 MB"),
        (5, 10, 20, "[######......] 0 MB"),
        (10, 10, 20, "[############] 0 MB"),
        (99, 10, 20, "[############] 0 MB"),
        (5, 10, 200, f"[{'#' * 15}{'.' * 15}] 0 MB"),
        (5, 10, 12, "0 MB"),
        (5, 10, 4, "0 M"),
        (5, 10, 0, ""),
        (5, None, 20, "0 MB"),
        (0, 0, 20, "0 MB"),
    ],
)
def test_a_line(done: int, total: int | None, width: int, expected: str) -> None:
    assert line(done, total, "0 MB", width) == expected


class Terminal(io.StringIO):
    """Knows what a terminal would show."""

    def shown(self) -> str:
        cells: list[str] = []
        for part in self.getvalue().split("\r"):
            cells[: len(part)] = part
        return "".join(cells).rstrip()


def bar_on(terminal: io.StringIO, times: list[float], wanted: bool = True) -> Bar:
    clock = iter(times)
    return Bar(terminal, wanted=wanted, clock=lambda: next(clock))


def test_it_is_drawn_ten_times_a_second_at_most() -> None:
    terminal = Terminal()
    with bar_on(terminal, [n * EVERY / 100 for n in range(1000)]) as bar:
        for done in range(1000):
            bar.show(done, 1000, f"{done} of 1000")
        drawn = terminal.getvalue().count("\r")
        assert 9 <= drawn <= 11
        assert terminal.shown().startswith("[####") and " of 1000" in terminal.shown()
    assert terminal.shown() == ""


def test_a_shorter_line_covers_a_longer_one_and_none_reaches_the_last_column() -> None:
    terminal = Terminal()
    with bar_on(terminal, [0, 1, 2]) as bar:
        bar.show(1, None, "x" * 100)
        assert terminal.shown() == "x" * 79
        bar.show(1, None, "short")
        assert terminal.shown() == "short"
    assert terminal.shown() == ""


def test_nothing_is_written_where_it_is_not_wanted_or_nothing_was_shown() -> None:
    terminal = Terminal()
    with bar_on(terminal, [], wanted=False) as bar:
        bar.show(1, 2, "one")
    with bar_on(terminal, []):
        pass
    assert terminal.getvalue() == ""


def test_a_terminal_that_has_gone_ends_the_bar_and_nothing_else() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    with bar_on(Gone(), [0]) as bar:
        bar.show(1, 2, "one")
        bar.show(2, 2, "two")
    assert not bar.wanted
