from __future__ import annotations

import threading
import time
from collections.abc import Callable

from relay.hooks.jobs import Ended, Job, Lane, Over
from relay.hooks.waits import stand_still

DEADLINE = 20.0


def _jobs(*calls: Callable[[], object]) -> list[Job]:
    return [Job(call, name=f"job {number}") for number, call in enumerate(calls)]


def test_a_job_s_future_ends_with_it_whenever_it_is_asked_for() -> None:
    early, late = _jobs(lambda: 1, lambda: 2)
    asked = early.future
    early.finish(Ended(1))
    late.finish(Ended(2))
    assert (asked.result(0).value, early.future is asked, late.future.result(0).value) == (
        1,
        True,
        2,
    )


def test_a_lane_makes_its_calls_in_turn_and_says_when_it_is_over() -> None:
    order: list[str] = []

    def note() -> None:
        order.append(threading.current_thread().name)

    jobs = _jobs(note, lambda: 1 // 0, note)
    lane = Lane(jobs, iter(range(100)).__next__)

    def run() -> None:
        lane.work()
        lane.end()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert lane.over.wait(DEADLINE)
    assert order == ["job 0", "job 2"]
    errors = [job.ended and type(job.ended.error) for job in jobs]
    assert errors == [type(None), ZeroDivisionError, type(None)]
    assert [job.took for job in jobs] == [1, 1, 1]
    thread.join(DEADLINE)


def test_the_end_of_a_lane_s_last_call_is_told_when_its_thread_is_free() -> None:
    first, last = _jobs(lambda: 1, lambda: 2)
    lane = Lane([first, last], time.monotonic)
    lane.work()
    assert (first.ended, last.ended, lane.over.yet) == (Ended(1), None, False)
    lane.end()
    assert (last.ended, lane.over.yet) == (Ended(2), True)


def test_what_is_taken_back_is_not_called() -> None:
    called: list[int] = []
    lane: Lane

    def take_back() -> None:
        called.append(0)
        lane.take_back()

    jobs = _jobs(take_back, lambda: called.append(1), lambda: called.append(2))
    lane = Lane(jobs, time.monotonic)
    lane.work()
    lane.end()
    assert called == [0]
    assert [job.withdrawn for job in jobs] == [False, True, True]
    assert jobs[0].ended == Ended(None)
    lane.take_back()  # a second time changes nothing
    assert not jobs[0].withdrawn


def test_what_is_over_is_told_before_and_after_and_waited_for_no_longer_than_said() -> None:
    over, told = Over(), []
    assert not over.wait(0.001)
    over.tell(lambda: told.append("then"))
    stand_still([over], 0.001)
    assert not told
    over.end()
    over.tell(lambda: told.append("now"))
    assert told == ["then", "now"]
    assert over.wait(0)
    assert over.wait(0)
