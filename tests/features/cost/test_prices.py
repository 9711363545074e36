"""What tokens cost: relay's own prices, and those of the person's file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relay.features.cost.prices import Prices, PricesError, parse_prices, user_prices


def test_the_longest_glob_that_fits_says_what_tokens_cost() -> None:
    prices = Prices(
        parse_prices(
            "prices:\n  m-*: {input: 1, output: 2}\n"
            "  m-big*: {input: 10, output: 20, cached: 0.5, written: 12}\n"
        )
    )
    assert prices.dollars("m-small", (1_000_000, 500_000, 1_000_000, 0)) == 3.0
    assert prices.dollars("some/M-Big-2", (0, 0, 2_000_000, 1_000_000)) == 13.0
    assert prices.dollars("other", (1, 1, 1, 1)) is None


def test_every_mistake_has_its_line() -> None:
    with pytest.raises(PricesError) as caught:
        parse_prices("prices:\n  a: {input: x, output: 2}\n  b: {input: 1}\n  c: {inptu: 1}\n")
    assert [one.line for one in caught.value.mistakes] == [2, 3, 4, 4]


def test_the_persons_file_wins_and_one_that_is_wrong_is_left_out() -> None:
    known = user_prices()
    sonnet = known.of("claude-sonnet-4-5-20250929")
    assert sonnet is not None
    path = Path(os.environ["HOME"], ".config/relay/prices.yaml")
    path.parent.mkdir(parents=True)
    path.write_text("prices:\n  claude-sonnet-4-5*: {input: 0, output: 0}\n")
    mine = user_prices(known)
    assert mine.of("claude-sonnet-4-5-20250929") == (0, 0, 0, 0)
    assert user_prices(mine) is mine
    path.write_text("prices: 7\n")
    wrong = user_prices(mine)
    assert wrong.of("claude-sonnet-4-5-20250929") == sonnet
    assert "prices.yaml" in wrong.problem
