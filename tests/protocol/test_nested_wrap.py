"""What a wrap inside this one hears is told from the rest, wherever the bytes are divided."""

from __future__ import annotations

from relay.protocol.nested_wrap import NestedOutput, begins, ends

RUN, OTHER = "01KAM3T4Q8ZV7X2N5BWP9RCDEF", "01KAM3T4Q8ZV7X2N5BWP9RCDEG"
BEGIN, END = begins(RUN, 4194304), ends(RUN, 4194304)
DATA = b"mine " + BEGIN + b"inner" + END + b"mine" + begins(OTHER, 7) + b"mine, too"


def heard(*chunks: bytes, pid: int = 0) -> dict[int, bytes]:
    """The bytes of each process, with the sequences behind which it ends."""
    nested, found = NestedOutput(RUN, pid), dict[int, bytes]()
    for chunk in chunks:
        parts = list(nested.split(chunk))
        assert b"".join(part for part, _ in parts) == chunk
        for part, process in parts:
            found[process] = found.get(process, b"") + part
    return found


def test_the_parts_are_told_apart_wherever_they_are_divided() -> None:
    whole = heard(DATA)
    assert whole[4194304] == b"inner" + END and whole[0].endswith(b"mine, too")
    for at in range(len(DATA)):
        found = heard(DATA[:at], DATA[at:])
        assert b"inner" in found[4194304] and b"mine" not in found[4194304]
        assert b"inner" not in found[0]
    assert b"inner" not in heard(*(DATA[n : n + 1] for n in range(len(DATA))))[0]


def test_a_sequence_for_another_run_and_one_that_is_not_whole_change_nothing() -> None:
    for data in (begins(OTHER, 7), BEGIN[:-1] + b"x", b"\x1b]7702;in;;7\x1b\\", b""):
        assert set(heard(data, b"text")) == {0}


def test_a_session_goes_on_where_the_one_before_was() -> None:
    assert heard(b"inner" + END, b"mine", pid=7) == {7: b"inner" + END, 0: b"mine"}


def test_no_output_says_that_the_agent_itself_is_a_wrap_inside() -> None:
    nested = NestedOutput(RUN, agent=7)
    assert [pid for _, pid in nested.split(begins(RUN, 7) + b"mine")] == [0, 0]
