"""A prompt's length in tokens is estimated from its bytes, by what engines reported for earlier ones."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.profiles.input_length import InputLengths, Script, script_of


def test_an_estimate_starts_from_four_bytes_a_token_rounded_up() -> None:
    lengths = InputLengths()
    assert [lengths.estimate("chat", size) for size in (0, 1, 4, 5, 4000)] == [1, 1, 1, 2, 1000]
    assert lengths.relative_error("chat") is None


@pytest.mark.parametrize("bytes_per_token", [1.5, 2.7, 4.0, 6.0, 12.0])
def test_a_few_dozen_answers_bring_the_estimate_within_five_percent(bytes_per_token: float) -> None:
    lengths = InputLengths()
    for n in range(60):
        tokens = 500 + 50 * n
        lengths.learn("chat", round(tokens * bytes_per_token), tokens)
    assert lengths.estimate("chat", round(10_000 * bytes_per_token)) == pytest.approx(10_000, rel=0.05)


def test_an_estimate_follows_traffic_that_changes() -> None:
    lengths = InputLengths()
    for _ in range(10_000):
        lengths.learn("chat", 4000, 1000)
    for _ in range(200):
        lengths.learn("chat", 4000, 2000)
    assert lengths.estimate("chat", 4000) == pytest.approx(2000, rel=0.05)


def test_each_route_learns_from_its_own_answers() -> None:
    lengths = InputLengths()
    for _ in range(50):
        lengths.learn("chat", 1000, 500)
    assert lengths.estimate("completions", 4000) == 1000
    assert lengths.relative_error("completions") is None


def test_each_script_learns_from_its_own_answers() -> None:
    lengths = InputLengths()
    for _ in range(50):
        lengths.learn("chat", 3000, 1500, Script.OTHER)
    assert lengths.estimate("chat", 3000, Script.OTHER) == pytest.approx(1500, rel=0.05)
    assert lengths.estimate("chat", 4000, Script.ASCII) == 1000
    assert [(one.route, one.script) for one in lengths.report()] == [("chat", Script.OTHER)]


ENGLISH = "The narwhal’s tusk is a tooth — naïve as that sounds. " * 40
CHINESE = "独角鲸的长牙其实是一颗牙齿。" * 40


@pytest.mark.parametrize(
    ("text", "escaped", "script"),
    [
        (ENGLISH, False, Script.ASCII),
        (ENGLISH, True, Script.ASCII),
        (CHINESE, False, Script.OTHER),
        (CHINESE, True, Script.ESCAPED),
        ("", False, Script.ASCII),
    ],
)
def test_the_script_is_that_of_most_of_the_text_as_the_client_wrote_it(
    text: str, escaped: bool, script: Script
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    assert script_of(json.dumps(body, ensure_ascii=escaped).encode()) is script


@given(st.binary(max_size=5000))
def test_any_body_has_a_script(body: bytes) -> None:
    assert script_of(body) in Script


def test_short_prompts_that_are_mostly_template_hardly_move_the_estimate_of_long_ones() -> None:
    lengths = InputLengths()
    for _ in range(200):
        lengths.learn("chat", 100_000, 25_000)
        lengths.learn("chat", 10, 12)
    assert lengths.estimate("chat", 100_000) == pytest.approx(25_000, rel=0.2)


def test_one_absurd_count_moves_the_estimate_within_bounds_only() -> None:
    lengths = InputLengths()
    for _ in range(50):
        lengths.learn("chat", 4000, 1000)
    lengths.learn("chat", 4000, 10**9)
    assert lengths.estimate("chat", 4000) < 1200


def test_the_error_is_that_of_the_estimates_as_they_were_given() -> None:
    lengths = InputLengths()
    lengths.learn("chat", 4000, 2000)  # the estimate was 1000
    assert lengths.relative_error("chat") == pytest.approx(0.5)
    for _ in range(300):
        lengths.learn("chat", 4000, 2000)
    error = lengths.relative_error("chat")
    assert error is not None
    assert error < 0.02


def test_an_empty_prompt_or_count_teaches_nothing() -> None:
    lengths = InputLengths()
    for prompt_bytes, prompt_tokens in ((0, 5), (100, 0), (100, -1)):
        lengths.learn("chat", prompt_bytes, prompt_tokens)
    assert lengths.bytes_per_token("chat") == 4.0
    assert lengths.relative_error("chat") is None


SIZES = st.integers(-1, 2**62)


@settings(deadline=None)
@given(st.lists(st.tuples(SIZES, SIZES), max_size=100), st.integers(0, 2**40), st.integers(0, 2**40))
def test_whatever_engines_report_an_estimate_stays_possible_and_grows_with_the_prompt(
    reports: list[tuple[int, int]], one: int, other: int
) -> None:
    lengths = InputLengths()
    for prompt_bytes, prompt_tokens in reports:
        lengths.learn("chat", prompt_bytes, prompt_tokens)
    short, long = sorted((one, other))
    assert 1 <= lengths.estimate("chat", short) <= lengths.estimate("chat", long)
    assert long / 16.01 <= lengths.estimate("chat", long) <= long * 2.01 + 1
