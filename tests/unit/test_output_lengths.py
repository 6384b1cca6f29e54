"""How long an answer will be is learned from answers to prompts like it."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.profiles.output_lengths import ENOUGH, MEMORY, PRIOR_MEDIAN, OutputLengths


def test_until_there_is_enough_a_guess_bounded_by_max_tokens_stands() -> None:
    lengths = OutputLengths()
    for _ in range(ENOUGH - 1):
        lengths.learn(1000, None, 5000)
    assert lengths.expect(1000, None) == pytest.approx(PRIOR_MEDIAN)
    assert lengths.expect(1000, 20) == 20
    assert lengths.expect(1000, None, 0.9) > 2 * PRIOR_MEDIAN


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_quantiles_are_those_of_what_was_counted(quantile: float) -> None:
    random, lengths = Random(1), OutputLengths()
    counted = [max(1, round(random.lognormvariate(5.0, 0.8))) for _ in range(1500)]
    for output in counted:
        lengths.learn(1000, 4096, output)
    true = sorted(counted)[round(quantile * len(counted))]
    assert lengths.expect(1000, 4096, quantile) == pytest.approx(true, rel=0.2)


def test_prompts_of_another_length_and_other_limits_are_told_apart() -> None:
    lengths = OutputLengths()
    for _ in range(100):
        lengths.learn(100, 1024, 20)
        lengths.learn(10_000, 1024, 700)
        lengths.learn(100, 64, 60)
    assert lengths.expect(120, 1000) == pytest.approx(20, rel=0.2)
    assert lengths.expect(9000, 1000) == pytest.approx(700, rel=0.2)
    assert lengths.expect(100, 60) == pytest.approx(60, rel=0.2)


def test_what_is_new_goes_by_the_same_limit_then_by_everything() -> None:
    lengths = OutputLengths()
    for _ in range(100):
        lengths.learn(100, 1024, 20)
    assert lengths.expect(50_000, 1024) == pytest.approx(20, rel=0.2)
    assert lengths.expect(50_000, 64) == pytest.approx(20, rel=0.2)


def test_traffic_that_changes_is_followed() -> None:
    lengths = OutputLengths()
    for output in (20,) * 20_000 + (500,) * 2 * MEMORY:
        lengths.learn(100, 1024, output)
    assert lengths.expect(100, 1024) == pytest.approx(500, rel=0.2)


def test_an_answer_without_output_teaches_nothing() -> None:
    lengths = OutputLengths()
    for _ in range(100):
        lengths.learn(100, 1024, 0)
    assert lengths.expect(100, 1024) == pytest.approx(PRIOR_MEDIAN)


TOKENS = st.integers(0, 2**40)
LIMIT = st.none() | st.integers(1, 2**31)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(TOKENS, LIMIT, TOKENS), max_size=40), TOKENS, LIMIT)
def test_whatever_is_counted_an_expectation_is_possible_and_grows_with_the_quantile(
    answers: list[tuple[int, int | None, int]], prompt: int, limit: int | None
) -> None:
    lengths = OutputLengths()
    for answer in answers:
        lengths.learn(*answer)
    low, middle, high = (lengths.expect(prompt, limit, quantile) for quantile in (0.1, 0.5, 0.9))
    assert 1 <= low <= middle <= high
    assert limit is None or high <= limit
