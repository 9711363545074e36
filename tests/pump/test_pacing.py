"""When the session gets its copy: at once as a rule, and after a flood."""

from __future__ import annotations

from relay.pump.fast_path import FLOOD_LATEST, FLOOD_RATE, Pace

STEP = 0.004


class Run:
    """A pump that writes at some rate; ``told`` are the moments when the session got something.

    At most ``most`` bytes at a time.
    """

    def __init__(self, most: int = 1 << 40) -> None:
        self.most = most
        self.pace = Pace()
        self.now = 1000.0
        self.written = 0
        self.heard = 0
        self.told: list[float] = []

    def go(self, rate: float, seconds: float, convenient: bool = False) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += STEP
            self.written += int(rate * STEP)
            backlog = self.written - self.heard
            if backlog and self.pace.due(self.written, backlog, convenient, self.now):
                self.heard += min(backlog, self.most)
                self.told.append(self.now)

    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.told, self.told[1:], strict=False)]


def test_a_little_output_is_told_within_a_hundredth_of_a_second() -> None:
    run = Run()
    run.go(1_000_000, 1.0)
    assert max(run.gaps()) <= 0.010 + 2 * STEP


def test_a_quiet_moment_is_used_at_once() -> None:
    run = Run()
    run.go(5_000_000, 0.2, convenient=True)
    assert max(run.gaps()) <= 1.5 * STEP


def test_less_than_a_flood_is_never_held_back() -> None:
    run = Run()
    run.go(0.9 * FLOOD_RATE, 3.0)
    assert max(run.gaps()) <= 0.250 + 2 * STEP


def test_a_flood_goes_first_and_is_told_when_the_agent_rests() -> None:
    run = Run()
    run.go(1_000_000, 0.2)
    run.go(80_000_000, 5.0, convenient=True)
    assert run.now - run.told[-1] > 4.5
    rests = run.now
    run.go(0, 0.2, convenient=True)
    assert run.told[-1] - rests <= 0.1 + 2 * STEP and run.heard == run.written


def test_a_flood_without_end_is_told_after_a_while() -> None:
    run = Run()
    run.go(80_000_000, 2.5 * FLOOD_LATEST)
    assert FLOOD_LATEST - 1 <= max(run.gaps()) <= FLOOD_LATEST + 0.25


def test_a_session_that_is_behind_is_not_held_back_again_and_again() -> None:
    """It hears as fast as it can, however the flood's speed changes."""
    run = Run(most=100_000)
    run.go(80_000_000, 1.1 * FLOOD_LATEST, convenient=True)
    late = len(run.told)
    for _ in range(20):
        run.go(1_000_000, 0.3, convenient=True)
        run.go(80_000_000, 0.3, convenient=True)
    assert run.written - run.heard > 50_000_000
    assert max(run.gaps()[late:]) <= 0.250 + 2 * STEP
