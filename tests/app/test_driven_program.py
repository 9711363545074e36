"""A program in a terminal that nobody sits at."""

from __future__ import annotations

import os
import threading

from relay.app.driven_program import DrivenProgram


def test_who_is_told_of_its_end_finds_it_ended() -> None:
    told: list[bool] = []
    made, ended = threading.Event(), threading.Event()

    def look() -> None:
        assert made.wait(20)
        told.append(program.runs)
        if not program.runs:
            ended.set()

    program = DrivenProgram(["true"], dict(os.environ), 20, 4, look)
    made.set()
    with program:
        assert ended.wait(20), told
        assert program.exit_status == 0
