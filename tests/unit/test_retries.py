"""Retries are paid for by requests that were served, and wait a little first."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.fleet.retries import RetryBudget, pause


@settings(deadline=None)
@given(
    st.sampled_from([0.25, 0.5, 1.0]),  # exact in binary, so that sums are
    st.integers(0, 10),
    st.lists(st.booleans(), max_size=200),
)
def test_retries_never_exceed_the_reserve_and_the_share_of_what_was_served(
    share: float, reserve: int, steps: list[bool]
) -> None:
    budget = RetryBudget(share, reserve)
    served = retried = denied = 0
    for success in steps:
        if success:
            served += 1
            budget.served()
        elif budget.spend():
            retried += 1
        else:
            denied += 1
        assert retried <= reserve + share * served
        assert 0 <= budget.left <= reserve
    assert budget.denied == denied


def test_a_fleet_that_serves_pays_for_its_share_of_retries_for_ever() -> None:
    budget = RetryBudget(0.2, 3)
    assert [budget.spend() for _ in range(5)] == [True, True, True, False, False]
    for _ in range(50):
        for _ in range(6):
            budget.served()
        assert budget.spend()


@settings(deadline=None)
@given(st.integers(1, 16), st.floats(1e-6, 10), st.integers())
def test_pauses_grow_with_each_attempt_within_bounds(attempts: int, base_s: float, seed: int) -> None:
    one = pause(attempts, base_s, Random(seed))
    assert 0 <= one <= min(2.0, base_s * 2 ** (attempts - 1))
    assert one == pause(attempts, base_s, Random(seed))
    assert pause(attempts + 1, base_s, Random(seed)) >= one
