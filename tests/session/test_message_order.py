"""In which order what waits for an agent goes over."""

from __future__ import annotations

from dataclasses import replace

from relay.agents.base import Blocked
from relay.core.message import Message, QueueMode
from relay.core.queue_modes import COLLECT_MS, QUIET_MS, StartTurn, SteerTurn, StopTurn, WaitQueue
from relay.session import message_order as module
from relay.session.message_order import MessageOrder, fitting, ready_now
from tests.session.playbook import MESSAGE

FOLLOWUP, STEER = QueueMode.FOLLOWUP, QueueMode.STEER
COLLECT, INTERRUPT = QueueMode.COLLECT, QueueMode.INTERRUPT


def message(number: int, mode: QueueMode = FOLLOWUP, kind: str = "agent") -> Message:
    return replace(MESSAGE, id=f"01K{number:023d}", mode=mode, sender_kind=kind, body=str(number))


def came(*messages: Message, at: float = 0.0) -> MessageOrder:
    order = MessageOrder()
    for one in messages:
        order.arrived(one, at)
    return order


def open_to_all(one: Message) -> Blocked | None:
    return None


def test_what_collects_goes_together_once_it_is_quiet() -> None:
    one, two, other = message(1, COLLECT), message(2, COLLECT), message(3, COLLECT, "person")
    order = came(one)
    order.arrived(two, 0.4)
    order.arrived(other, 0.4)
    waiting = [one, two, other]
    step = order.next(waiting, 0.5, None, steers=False)
    assert step == WaitQueue(400 + QUIET_MS)
    ready, held = ready_now(step, waiting, open_to_all, 0.5)
    assert not ready and held is not None and held.reason == module.COLLECTING
    step = order.next(waiting, 0.9, None, steers=False)
    assert step == StartTurn((one.id, two.id))
    assert ready_now(step, waiting, open_to_all, 0.9) == ([one, two], None)
    closed = Blocked("a dialog")
    assert ready_now(step, waiting, lambda message: closed, 0.9) == ([], closed)


def test_what_collects_waits_for_the_end_of_the_turn_and_five_seconds_at_most() -> None:
    many = [message(n, COLLECT) for n in range(1, 20)]
    order = MessageOrder()
    for number, one in enumerate(many):
        order.arrived(one, number * 0.3)
    assert order.next(many, 60.0, 1.0, steers=True) == WaitQueue()
    before = order.next(many[:17], 4.9, None, steers=False)
    assert before == WaitQueue(COLLECT_MS)
    assert isinstance(order.next(many[:17], 5.0, None, steers=False), StartTurn)


def test_an_interrupt_stops_the_turn_that_was_there_before_it() -> None:
    first, stop = message(1), message(2, INTERRUPT)
    order = came(stop, at=10.0)
    assert order.next([first, stop], 11.0, 5.0, steers=True) == StopTurn(stop.id)
    assert order.next([first, stop], 11.0, 10.5, steers=True) == WaitQueue()
    assert order.next([first, stop], 11.0, None, steers=True) == StartTurn((stop.id,))


def test_relay_and_steers_wait_for_nothing_that_collects() -> None:
    notice, steer = message(1, kind="relay"), message(2, STEER)
    waiting = [message(3, COLLECT), notice, steer]
    step = came(waiting[0]).next(waiting, 60.0, 1.0, steers=True)
    assert step == SteerTurn((steer.id,))
    assert ready_now(step, waiting, open_to_all, 60.0)[0] == [notice, steer]
    step = came(waiting[0]).next(waiting[:2], 60.0, 1.0, steers=False)
    assert ready_now(step, waiting[:1], open_to_all, 60.0) == ([], module.BUSY)


def test_one_turn_has_room_for_so_much() -> None:
    large = [replace(message(n, COLLECT), body="x" * 200_000) for n in (1, 2)]
    assert fitting(large) == large[:1]
    assert fitting([replace(large[0], body="x" * module.TOGETHER_MAX * 2)])
