"""When requests are due, how long they are and what they ask."""

from __future__ import annotations

import itertools
import math
import statistics
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.harness.arrivals import BURSTY_CV, Pattern, arrivals
from narwhal.harness.generator import Draft
from narwhal.harness.lengths import read_lengths
from narwhal.harness.load import Load, Point
from narwhal.harness.prompts import MadeUp, PromptsError, load_prompts
from narwhal.harness.trace import BLOCK_TOKENS, TraceError, load_trace, read_trace

RATES = st.floats(0.1, 1000)
SEEDS = st.integers(0, 1000)


def first(count: int, pattern: Pattern, rate: float, seed: int, ramp_s: float = 0.0) -> list[float]:
    return list(itertools.islice(arrivals(pattern, rate, Random(seed), ramp_s=ramp_s), count))


@given(st.sampled_from(Pattern), RATES, SEEDS, st.floats(0, 100))
def test_arrivals_never_go_back_and_the_same_seed_gives_the_same(
    pattern: Pattern, rate: float, seed: int, ramp_s: float
) -> None:
    times = first(50, pattern, rate, seed, ramp_s)
    assert times == sorted(times) == first(50, pattern, rate, seed, ramp_s)
    assert times[0] >= 0


@given(st.sampled_from(Pattern), RATES, SEEDS)
def test_twice_the_rate_brings_the_same_arrivals_in_half_the_time(
    pattern: Pattern, rate: float, seed: int
) -> None:
    slow, fast = first(50, pattern, rate, seed), first(50, pattern, 2 * rate, seed)
    assert all(math.isclose(a, 2 * b) for a, b in zip(slow, fast, strict=True))


@given(RATES, st.floats(0.1, 100))
def test_in_a_ramp_the_rate_grows_evenly_from_nothing(rate: float, ramp_s: float) -> None:
    for number, at in enumerate(first(50, Pattern.CONSTANT, rate, 0, ramp_s)):
        # The area below the rate's line up to there is how many have come.
        ramped = min(at, ramp_s)
        come = rate * ramped**2 / (2 * ramp_s) + rate * (at - ramped)
        assert math.isclose(come, number, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize(
    ("pattern", "cv"), [(Pattern.CONSTANT, 0.0), (Pattern.POISSON, 1.0), (Pattern.BURSTY, BURSTY_CV)]
)
def test_gaps_have_the_mean_of_the_rate_and_vary_as_the_pattern_says(pattern: Pattern, cv: float) -> None:
    times = first(40_000, pattern, 5.0, 3)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    mean = statistics.fmean(gaps)
    assert math.isclose(mean, 0.2, rel_tol=0.05)
    assert math.isclose(statistics.pstdev(gaps) / mean, cv, rel_tol=0.05, abs_tol=1e-6)


@given(st.integers(1, 10_000), st.integers(0, 1000), SEEDS)
def test_a_range_gives_lengths_within_it(least: int, more: int, seed: int) -> None:
    lengths = read_lengths(f"{least}-{least + more}")
    assert read_lengths(str(lengths)) == lengths
    assert all(least <= lengths.draw(source) <= least + more for source in [Random(seed)] for _ in range(20))


def test_log_normal_lengths_have_the_median_and_the_spread_that_was_asked_for_and_stop_at_the_maximum() -> (
    None
):
    lengths, source = read_lengths("lognormal:400,0.5,1200"), Random(1)
    drawn = sorted(lengths.draw(source) for _ in range(20_000))
    assert math.isclose(drawn[10_000], 400, rel_tol=0.03)
    assert math.isclose(drawn[int(20_000 * 0.8413)], 400 * math.exp(0.5), rel_tol=0.03)
    assert drawn[-1] == 1200
    assert read_lengths(str(lengths)) == lengths


@pytest.mark.parametrize("text", ["", "0", "-5", "900-100", "lognormal:400", "lognormal:400,0.5,100", "ten"])
def test_a_wrong_length_is_turned_down_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"allowed|must lie"):
        read_lengths(text)


@given(st.integers(1, 3000), SEEDS, st.booleans())
def test_made_up_prompts_have_the_wanted_length_and_share_no_prefix(
    tokens: int, seed: int, as_ids: bool
) -> None:
    maker, source = MAKERS[as_ids], Random(seed)
    one, other = (maker.make(source, tokens).members["prompt"] for _ in range(2))
    for prompt in (one, other):
        pieces = prompt if as_ids else prompt.split()
        assert len(pieces) == tokens
        assert not as_ids or all(0 <= token < 32000 for token in pieces)
    assert tokens < 6 or one[:6] != other[:6] or not as_ids


MAKERS = {ids: MadeUp(chat=False, vocabulary=32000 if ids else None, seed=0) for ids in (False, True)}


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(1, BLOCK_TOKENS), st.booleans())
def test_prompts_of_a_trace_share_as_many_blocks_as_their_hash_ids_do(
    hash_ids: list[int], last: int, as_ids: bool
) -> None:
    maker = MAKERS[as_ids]
    tokens = (len(hash_ids) - 1) * BLOCK_TOKENS + last
    one = maker.make(Random(1), tokens, hash_ids).members["prompt"]
    longer = maker.make(Random(2), tokens + BLOCK_TOKENS, [*hash_ids, 77]).members["prompt"]
    other = maker.make(Random(3), tokens, [*hash_ids[:-1], 99]).members["prompt"]
    split = (lambda prompt: prompt) if as_ids else str.split
    shared = (len(hash_ids) - 1) * BLOCK_TOKENS
    assert len(split(one)) == tokens
    assert split(longer)[:shared] == split(one)[:shared] == split(other)[:shared]
    assert last < 6 or split(longer)[:tokens] == split(one)


def test_a_trace_is_played_from_its_first_request_in_order_and_at_the_speed_asked_for() -> None:
    lines = [
        b'{"timestamp": 3000, "input_length": 10, "output_length": 4, "hash_ids": [1, 2]}',
        b"",
        b'{"timestamp": 1000, "input_length": 20, "output_length": 0, "more": 1}',
    ]
    assert read_trace(lines, speedup=4.0) == [(0.0, 20, 1, ()), (0.5, 10, 4, (1, 2))]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("nonsense", "line 2: not JSON"),
        ("[1]", "line 2: not an object"),
        ('{"timestamp": -1, "input_length": 1, "output_length": 1}', "line 2: timestamp is -1"),
        ('{"timestamp": 0, "input_length": true, "output_length": 1}', "line 2: input_length is True"),
        ('{"timestamp": 0, "input_length": 1}', "line 2: output_length is None"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}', "line 2: hash_ids"),
    ],
)
def test_a_broken_trace_is_turned_down_with_the_line_and_the_field(
    line: str, what: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 1, "output_length": 1}\n' + line)
    with pytest.raises(TraceError, match=what):
        load_trace(path)


def test_prompts_of_a_file_come_in_its_order_over_and_over(tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text('Hello\n\n{"prompt": "Hi", "max_tokens": 3, "temperature": 0}\n')
    prompts = load_prompts(path, chat=True)
    made = [prompts.make(Random(0), 100) for _ in range(3)]
    assert [prompt.members["messages"][0]["content"] for prompt in made] == ["Hello", "Hi", "Hello"]
    assert made[1].output_tokens == 3
    assert made[1].members["temperature"] == 0


@pytest.mark.parametrize(
    "line", ["{", '{"max_tokens": 1}', '{"prompt": "a", "max_tokens": 0}', '{"prompt": [1]}']
)
def test_a_broken_file_of_prompts_is_turned_down_with_the_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text(f"fine\n{line}\n")
    with pytest.raises(PromptsError, match="line 2"):
        load_prompts(path, chat=True)


def load(point: Point, **more: object) -> Load:
    settings: dict[str, object] = {"rounds": 1, "duration_s": None, "requests": None, "warmup_s": 0.0} | more
    lengths = read_lengths("10-20")
    return Load((point,), MAKERS[False], lengths, lengths, **settings)  # type: ignore[arg-type]


def test_a_round_by_time_measures_all_that_is_due_after_the_warm_up_and_nothing_due_after_its_end() -> None:
    point = Point(rate=10.0)
    drafts = list(load(point, pattern=Pattern.CONSTANT, duration_s=3.0, warmup_s=1.0).open(point, 0))
    assert [draft.at_s for draft in drafts] == pytest.approx([i / 10 for i in range(40)])
    assert [draft.measured for draft in drafts] == [False] * 10 + [True] * 30


def test_a_round_by_number_measures_so_many_after_the_warm_up() -> None:
    point = Point(rate=10.0)
    drafts = list(load(point, requests=7, warmup_s=1.0).open(point, 0))
    assert sum(draft.measured for draft in drafts) == 7
    assert all(draft.measured == (draft.at_s >= 1.0) for draft in drafts)


def test_rounds_differ_and_points_of_one_round_ask_the_same() -> None:
    slow, fast = Point(rate=1.0), Point(rate=100.0)
    of = load(slow, requests=20)

    def asked(drafts: list[Draft]) -> list[object]:
        return [(draft.prompt, draft.output_tokens) for draft in drafts]

    assert asked(list(of.open(slow, 0))) == asked(list(of.open(fast, 0)))
    assert asked(list(of.open(slow, 0))) != asked(list(of.open(slow, 1)))
