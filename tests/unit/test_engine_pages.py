"""An engine's pages are read for what they say, and whatever else they hold does no harm."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.engines.pages import Card, read_metrics, read_models, read_version

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["data", "id", "max_model_len", "version", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=50, deadline=None)
def test_no_page_is_too_odd_to_be_read(body: bytes) -> None:
    cards = read_models(body)
    assert cards is None or all(isinstance(card.name, str) for card in cards)
    read_version(body)
    read_metrics(body)


def test_a_models_page_gives_names_and_longest_contexts() -> None:
    page = {
        "data": [
            {"id": "a", "owned_by": "vllm", "max_model_len": 4096},
            {"id": "b", "max_model_len": True},
            {"name": "no model"},
        ]
    }
    assert read_models(json.dumps(page).encode()) == [Card("a", "vllm", 4096), Card("b", "", None)]


def test_a_metrics_page_gives_the_start_and_whether_it_is_of_vllm() -> None:
    page = b'# HELP x\nprocess_start_time_seconds 1.5e9\nvllm:num_requests_running{a="b"} 0.0\n'
    assert read_metrics(page).started_at == 1.5e9
    assert read_metrics(page).of_vllm
    labelled = b'process_start_time_seconds{engine="0"} 7\n# vllm:nothing\n'
    assert read_metrics(labelled).started_at == 7.0
    assert not read_metrics(labelled).of_vllm
    assert read_metrics(b"process_start_time_seconds e+\n").started_at is None
