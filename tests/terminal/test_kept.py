"""The stream that is kept for the session: pieces, marks, and what is dealt with."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relay.terminal.kept import Kept


def test_small_pieces_are_put_together_but_not_across_a_mark() -> None:
    kept = Kept()
    kept.add(b"a")
    kept.add(b"b")
    mark = kept.mark()
    kept.add(b"c")
    assert kept.hand_out(100, mark) == [b"ab"]
    assert kept.hand_out(100, mark) == []
    assert kept.hand_out(100, None) == [b"c"]


def test_one_hand_out_fits_a_write() -> None:
    kept = Kept()
    for _ in range(3000):
        kept.add(b"x")
        kept.mark()
    handed = kept.hand_out(1 << 20, None)
    assert 0 < len(handed) < 1024
    while more := kept.hand_out(1 << 20, None):
        handed += more
    assert len(handed) == 3000


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "mark", "hand out", "drop", "take back"]), st.integers(0, 40)
        ),
        max_size=60,
    )
)
def test_everything_is_handed_out_in_order_until_it_is_dropped(
    steps: list[tuple[str, int]],
) -> None:
    kept, written, handed = Kept(), bytearray(), bytearray()
    for what, number in steps:
        if what == "add" and number:
            data = bytes([number]) * number * 100
            written += data
            kept.add(data)
        elif what == "mark":
            assert kept.mark() == len(written)
        elif what == "hand out":
            handed += b"".join(kept.hand_out(1 + number * 50, None))
        elif what == "drop":
            kept.drop(kept.base + (kept.framed - kept.base) * number // 40)
        elif what == "take back":
            kept.take_back()
            del handed[kept.base :]
        assert kept.framed == len(handed) and handed == written[: len(handed)]
        assert kept.base <= kept.framed <= kept.end == len(written)
        assert len(kept) == kept.end - kept.base
