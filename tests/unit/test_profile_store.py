"""The profile file comes back as it was written, is replaced at once, and says what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.profiles import store
from narwhal.profiles.curves import DecodeCurve, HandoffCurve, PrefillCurve
from narwhal.profiles.fit import TimedBatch, TimedLength
from narwhal.profiles.load import load_models
from narwhal.profiles.store import EngineProfile, Measured, ProfileError

PROFILE = EngineProfile(
    url="http://10.0.0.1:8000",
    model="m",
    measured_at=datetime(2026, 1, 31, 12, tzinfo=UTC),
    process_start_time=1769860000.25,
    prefill=Measured(PrefillCurve(1e-9, 2e-5, 0.01, 32, 8192, 0.02), (TimedLength(32, 0.0107),)),
    decode=Measured(DecodeCurve(0.008, 4e-5, 1e-8, 64, 70_000, None), (TimedBatch(2, 128.5, 0.0081),)),
    handoff=Measured(HandoffCurve(1e-6, 0.01, 32, 8192, 0.1), (TimedLength(32, 0.01),)),
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    only_decode = EngineProfile("http://d", "m", PROFILE.measured_at, None, decode=PROFILE.decode)
    store.write(path, {"p0": PROFILE, "d0": only_decode})
    assert store.read(path) == {"p0": PROFILE, "d0": only_decode}
    assert [entry.name for entry in tmp_path.iterdir()] == ["profiles.json"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "profiles.json"
    store.write(path, {"p0": PROFILE})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ProfileError, match=r"profiles\.json can't be written: No space left"):
        store.write(path, {})
    assert store.read(path) == {"p0": PROFILE}
    assert [entry.name for entry in tmp_path.iterdir()] == ["profiles.json"]


def test_a_folder_that_is_not_there_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    store.check_folder(tmp_path / "profiles.json")
    with pytest.raises(ProfileError, match="no folder that can be written to"):
        store.check_folder(tmp_path / "missing" / "profiles.json")


def test_a_model_starts_from_the_curves_there_are() -> None:
    model = PROFILE.engine_model()
    assert model.prefill_s(1000).seconds == pytest.approx(1e-3 + 0.02 + 0.01)
    assert model.handoff_s(1000).sure
    bare = EngineProfile("http://d", "m", PROFILE.measured_at, None, decode=PROFILE.decode).engine_model()
    assert (bare.prefill.measured, bare.interval.measured, bare.handoff.measured) == (False, True, False)


def test_a_profile_of_another_model_is_of_no_use() -> None:
    assert store.unfit(PROFILE, "m") is None
    assert store.unfit(PROFILE, "n") == "it was measured with model 'm', and the fleet serves 'n'"


def test_a_fleet_s_models_start_from_the_file_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    store.write(path, {"p0": PROFILE, "d0": replace(PROFILE, model="old"), "gone": PROFILE})
    models, remarks = load_models(["d0", "p0", "p1"], "m", path)
    assert [model.prefill.measured for model in models.engines] == [False, True, False]
    assert remarks == [
        f"{path}: no profile of engine d0 to go by, since it was measured with model 'old', and the fleet "
        "serves 'm'; it learns",
        f"{path}: no profile of engine p1 to go by, since there is none; it learns",
    ]


def test_a_fleet_without_a_profile_file_learns(tmp_path: Path) -> None:
    models, remarks = load_models(["p0"], "m", None)
    assert (models.engines[0].prefill.measured, remarks) == (False, [])
    models, remarks = load_models(["p0"], "m", tmp_path / "profiles.json")
    assert not models.engines[0].prefill.measured
    assert "not there yet" in remarks[0]
    (tmp_path / "profiles.json").write_text("{}")
    with pytest.raises(ProfileError):
        load_models(["p0"], "m", tmp_path / "profiles.json")


def content() -> dict[str, Any]:
    entry = {
        "url": "http://p",
        "model": "m",
        "measured_at": "2026-01-31T12:00:00+00:00",
        "process_start_time": None,
        "prefill": {
            "fit": {"a": 0, "b": 1e-5, "c": 0.01, "lo": 32, "hi": 64, "error": None},
            "points": [[32, 0.01], [64, 0.011]],
        },
    }
    return {"format": "narwhal-profiles", "version": 1, "engines": {"p0": entry}}


def read(tmp_path: Path, value: object) -> dict[str, EngineProfile]:
    path = tmp_path / "profiles.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return store.read(path)


@pytest.mark.parametrize(
    ("keys", "value", "problem"),
    [
        (["format"], "x", 'format: "x"; allowed: "narwhal-profiles"'),
        (["version"], 2, "version: 2; allowed: 1; measure again with `narwhal profile`"),
        (["engines"], [], "engines: []; allowed: an object, by engine ID"),
        (["engines", "p0"], 3, "engines.p0: 3; allowed: an object"),
        (["engines", "p0", "url"], None, "engines.p0.url: null; allowed: a string"),
        (["engines", "p0", "measured_at"], "noon", 'engines.p0.measured_at: "noon"; allowed: a time with'),
        (["engines", "p0", "measured_at"], "2026-01-31T12:00:00", "allowed: a time with its zone"),
        (["engines", "p0", "process_start_time"], "x", 'engines.p0.process_start_time: "x"; allowed: a num'),
        (["engines", "p0", "prefill"], 1, "engines.p0.prefill: 1; allowed: an object with `fit`"),
        (["engines", "p0", "prefill", "fit", "b"], -1, "engines.p0.prefill.fit.b: -1; allowed: a number of"),
        (["engines", "p0", "prefill", "fit", "a"], True, "engines.p0.prefill.fit.a: true; allowed: a number"),
        (["engines", "p0", "prefill", "fit", "hi"], None, "engines.p0.prefill.fit.hi: null; allowed: a numb"),
        (["engines", "p0", "prefill", "points"], {}, "engines.p0.prefill.points: {}; allowed: a list"),
        (
            ["engines", "p0", "prefill", "points", 1],
            [64],
            "engines.p0.prefill.points[1]: [64]; allowed: [tok",
        ),
    ],
)
def test_each_problem_is_named_with_what_was_seen_and_what_is_allowed(
    tmp_path: Path, keys: list[Any], value: object, problem: str
) -> None:
    file = content()
    at: Any = file
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    with pytest.raises(ProfileError) as error:
        read(tmp_path, file)
    assert problem in str(error.value)
    assert "profiles.json is no profile file that can be used" in str(error.value)


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    file = content()
    file["engines"]["p0"]["url"] = 1
    file["engines"]["p0"]["prefill"]["fit"]["c"] = "slow"
    with pytest.raises(ProfileError) as error:
        read(tmp_path, file)
    assert "engines.p0.url" in str(error.value)
    assert "engines.p0.prefill.fit.c" in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format":"narwhal-profiles"}'])
def test_what_is_no_profile_file_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ProfileError, match=r"profiles\.json"):
        read(tmp_path, text)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="can't be read: No such file"):
        store.read(tmp_path / "none.json")


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
PLACES = [
    ["engines"],
    ["engines", "p0"],
    *(["engines", "p0", key] for key in ("url", "model", "measured_at", "process_start_time", "prefill")),
    *(["engines", "p0", "prefill", key] for key in ("fit", "points")),
    *(["engines", "p0", "prefill", "fit", key] for key in ("a", "lo", "error")),
]


@settings(deadline=None, max_examples=80)
@given(st.sampled_from(PLACES), JSON)
def test_whatever_stands_in_a_place_it_is_read_or_named(place: list[str], value: Any) -> None:
    file = content()
    at: Any = file
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    problem = ""
    with TemporaryDirectory() as folder:
        try:
            profiles = read(Path(folder), file)
        except ProfileError as error:
            problem = str(error)
    if problem:
        assert ".".join(place) in problem
    else:
        assert all(profile.engine_model().prefill_s(50).seconds >= 0 for profile in profiles.values())
