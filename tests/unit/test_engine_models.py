"""A model prices an engine's work by its profile or by what it learned, and says which to rely on."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.profiles.curves import DecodeCurve, HandoffCurve, PrefillCurve
from narwhal.profiles.drift import WINDOW_S, State
from narwhal.profiles.model import PASS_TOKENS, EngineModel
from narwhal.profiles.models import DECODE, PREFILL, FleetModels

TRUE_PREFILL = PrefillCurve(1.5e-9, 2.5e-5, 0.008, 32, 8192)
TRUE_DECODE = DecodeCurve(0.008, 4e-5, 1e-8, 64, 100_000)
TRUE_HANDOFF = HandoffCurve(1e-6, 0.01, 32, 8192)


def profiled() -> EngineModel:
    return EngineModel(TRUE_PREFILL, TRUE_DECODE, TRUE_HANDOFF)


def feed(models: FleetModels, engine: int, random: Random, count: int, factor: float = 1.0) -> None:
    """What an engine of the true curves, times a factor, would show."""
    for _ in range(count):
        length = min(random.lognormvariate(6.9, 1.0), 20_000.0)
        running = random.randint(1, 64)
        kv_tokens = running * random.uniform(50, 1500)
        noise = random.gauss(1, 0.1) * factor
        models.learn_prefill(engine, length, TRUE_PREFILL.at(length) * noise)
        models.learn_interval(engine, running, kv_tokens, TRUE_DECODE.price(running, kv_tokens) * noise)
        models.learn_handoff(engine, length, TRUE_HANDOFF.at(length) * noise)


def test_a_profile_is_relied_on_from_the_start_within_what_was_measured() -> None:
    model = profiled()
    assert model.prefill_s(1000) == (TRUE_PREFILL.price(1000), True, False)
    assert model.handoff_s(1000) == (TRUE_HANDOFF.price(1000), True, False)
    assert model.interval_s(10, 5000).seconds == pytest.approx(TRUE_DECODE.price(10, 5000))
    assert model.interval_s(10, 5000)[1:] == (True, False)
    assert model.prefill_s(10_000).extrapolated
    assert model.handoff_s(8).extrapolated
    assert model.interval_s(65, 5000).extrapolated
    assert model.interval_s(1, 200_000).extrapolated


@pytest.mark.parametrize("factor", [0.4, 1.5, 3.0])
def test_a_profile_off_by_a_factor_is_put_right_by_traffic(factor: float) -> None:
    models = FleetModels([profiled()])
    feed(models, 0, Random(1), 50, factor)
    assert models.prefill_s(0, 1000).seconds == pytest.approx(factor * TRUE_PREFILL.price(1000), rel=0.1)
    assert models.handoff_s(0, 1000).seconds == pytest.approx(factor * TRUE_HANDOFF.price(1000), rel=0.1)
    interval = models.interval_s(0, 10, 5000).seconds
    assert interval == pytest.approx(factor * TRUE_DECODE.price(10, 5000), rel=0.1)


# Half the truth for a short prompt, twice that for a long one.
CROOKED = PrefillCurve(8e-9, 1e-5, 0.005, 32, 8192)


def prompts(models: FleetModels, random: Random, count: int, curve: PrefillCurve = TRUE_PREFILL) -> None:
    for _ in range(count):
        length = random.uniform(50, 8000)
        models.learn_prefill(0, length, curve.at(length) * random.gauss(1, 0.1))


def test_a_profile_of_the_wrong_shape_is_superseded_by_what_traffic_teaches_and_may_come_back() -> None:
    models, random = FleetModels([EngineModel(CROOKED)]), Random(1)
    prompts(models, random, 150)
    for tokens in (100, 1000, 8000):
        assert models.prefill_s(0, tokens).seconds == pytest.approx(TRUE_PREFILL.at(tokens), rel=0.1)
    assert models.engines[0].prefill.report().superseded
    assert models.prefill_s(0, 8190).extrapolated == (models.prefill_hi[0] < 8190)
    # The shape that was measured comes back: a learned curve of long memory is the worse one then.
    prompts(models, random, 400, CROOKED)
    for tokens in (100, 1000, 8000):
        assert models.prefill_s(0, tokens).seconds == pytest.approx(CROOKED.at(tokens), rel=0.1)
    assert not models.engines[0].prefill.report().superseded
    prompts(models, random, 150)
    models.restarted(0)
    assert models.prefill_s(0, 1000) == (CROOKED.price(1000), True, False)


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_a_profile_of_the_right_shape_stays(factor: float) -> None:
    models, random = FleetModels([profiled()]), Random(1)
    for _ in range(20):
        feed(models, 0, random, 50, factor)
        assert not any(work.superseded for work in models.engines[0].report().values())


def test_without_a_profile_prices_are_learned_and_then_relied_on() -> None:
    models = FleetModels([EngineModel()])
    assert models.prefill_s(0, 1000) == (0, False, True)
    assert models.engines[0].prefill.confidence == 0
    feed(models, 0, Random(1), 300)
    for price, true in (
        (models.prefill_s(0, 1000), TRUE_PREFILL.price(1000)),
        (models.handoff_s(0, 1000), TRUE_HANDOFF.price(1000)),
        (models.interval_s(0, 10, 5000), TRUE_DECODE.price(10, 5000)),
    ):
        assert price.seconds == pytest.approx(true, rel=0.1)
        assert price.sure
        assert not price.extrapolated
    assert models.prefill_s(0, 100_000).extrapolated
    assert models.engines[0].prefill.confidence > 0.8


def test_a_report_tells_how_well_each_kind_of_work_is_known() -> None:
    models = FleetModels([profiled(), EngineModel()])
    for engine in range(2):
        feed(models, engine, Random(1), 60, factor=2.0)
    measured, learned = (model.report() for model in models.engines)
    assert set(measured) == set(learned) == {"prefill", "handoff", "interval"}
    assert measured["prefill"].measured
    assert measured["prefill"].samples == 60
    assert measured["prefill"].correction == pytest.approx(2.0, rel=0.1)
    assert not learned["interval"].measured
    assert learned["interval"].sure
    assert 0.8 < learned["interval"].confidence <= 1
    assert 0.05 < learned["interval"].spread < 0.2


def test_a_learned_curve_follows_an_engine_that_changes_its_pace() -> None:
    models, random = FleetModels([EngineModel()]), Random(1)
    feed(models, 0, random, 300)
    feed(models, 0, random, 50, factor=2.0)
    assert models.prefill_s(0, 1000).seconds == pytest.approx(2 * TRUE_PREFILL.price(1000), rel=0.15)


@pytest.mark.parametrize("model", [profiled, EngineModel])
def test_a_restarted_engine_is_unknown_but_for_its_profile(model: type[EngineModel]) -> None:
    models, fresh = FleetModels([model()]), FleetModels([model()])
    feed(models, 0, Random(1), 100, factor=2.0)
    models.restarted(0)
    assert models.prefill_s(0, 1000) == fresh.prefill_s(0, 1000)
    assert models.interval_s(0, 10, 5000) == fresh.interval_s(0, 10, 5000)
    assert models.prefill_b[0] == fresh.prefill_b[0]


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 2000), st.floats(0.001, 2.0), st.floats(0, 0.2), st.randoms(use_true_random=False))
def test_a_curve_learned_from_one_length_says_nothing_wild_of_others(
    length: int, pace_s: float, noise: float, random: Random
) -> None:
    model = EngineModel()
    models = FleetModels([model])
    for _ in range(60):
        seen = pace_s * (1 + noise * random.uniform(-1, 1))
        models.learn_prefill(0, length, seen)
        models.learn_handoff(0, length, seen)
        models.learn_interval(0, 8, 8 * length, seen)
    grown = (64_000 + PASS_TOKENS) / (length + PASS_TOKENS)
    at_length = model.prefill_s(length).seconds
    assert at_length == pytest.approx(pace_s, rel=0.25)
    assert model.prefill_s(64_000).seconds == pytest.approx(at_length * grown)
    assert model.handoff_s(64_000).seconds <= 1.25 * pace_s * grown
    assert model.interval_s(9, 64_000).seconds <= 2.5 * pace_s


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 60), st.floats(0.3, 3), st.integers(1, 100_000), st.integers(1, 300), st.booleans())
def test_columns_price_as_the_models_do(
    count: int, factor: float, tokens: int, running: int, measured: bool
) -> None:
    models = FleetModels([EngineModel(), profiled() if measured else EngineModel()])
    feed(models, 1, Random(1), count, factor)
    prefill = (models.prefill_a[1] * tokens + models.prefill_b[1]) * tokens + models.prefill_c[1]
    handoff = models.handoff_b[1] * tokens + models.handoff_c[1]
    if tokens > models.prefill_hi[1]:
        past = models.prefill_edge[1] * (tokens + models.prefill_shift[1])
        prefill = past if models.prefill_shift[1] else max(prefill, past)
    if tokens > models.handoff_hi[1]:
        past = models.handoff_edge[1] * (tokens + models.handoff_shift[1])
        handoff = past if models.handoff_shift[1] else max(handoff, past)
    n, kv = min(running, models.interval_n_reach[1]), min(tokens, models.interval_kv_reach[1])
    interval = models.interval_c[1] + models.interval_p[1] * n + models.interval_q[1] * kv
    assert prefill == pytest.approx(models.prefill_s(1, tokens).seconds)
    assert handoff == pytest.approx(models.handoff_s(1, tokens).seconds)
    assert interval == pytest.approx(models.interval_s(1, running, tokens).seconds)
    assert bool(models.prefill_sure[1]) == models.prefill_s(1, tokens).sure
    assert models.prefill_s(0, tokens).seconds == 0


@pytest.mark.parametrize("model", [profiled, EngineModel])
def test_an_engine_that_drifts_is_surcharged_whether_its_curve_was_measured_or_learned(
    model: type[EngineModel],
) -> None:
    models, random = FleetModels([model() for _ in range(4)]), Random(1)
    now = 0.0
    models.tick(now)
    changed: list[tuple[int, int]] = []
    for window in range(40):
        for engine in range(4):
            feed(models, engine, random, 20, 1.8 if engine == 2 and window >= 30 else 1.0)
        now += WINDOW_S
        changed += models.tick(now)
    assert sorted(set(changed)) == [(PREFILL, 2), (DECODE, 2)]
    for phase in (PREFILL, DECODE):
        assert models.drift[phase].state(2) is State.PROBATION
        assert models.surcharge[phase][2] > 0
        assert models.surcharge[phase][0] == 0
    models.restarted(2)
    assert models.surcharge[PREFILL][2] == 0
