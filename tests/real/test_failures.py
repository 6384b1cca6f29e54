"""Real engines are drained, stopped and killed under the router: two that prefill, two that decode.

One of each is the session's and stays well; the others are this module's own. Each test ends with the fleet
that the next begins with; the last two kill.
"""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.real.test_engines import complete, eventually, long_prompt, token_ids
from tests.real.test_router import Router, assert_same_but_for_rounding, chat_alone, serving
from tools.record_streams import PREFILL
from tools.vllm_cpu.fleet import Engine, Fleet

BACK_S = 60.0  # on a busy machine, several probes with inference


@pytest.fixture(scope="module")
def others(pytestconfig: pytest.Config, fleet: Fleet) -> Iterator[Fleet]:
    """A second engine of each role."""
    folder = pytestconfig.rootpath / "build" / "real-engines-2"
    with Fleet.up(folder, {"prefill": 1, "decode": 1}, say=lambda line: None) as others:
        yield others


@pytest.fixture(scope="module")
def router(fleet: Fleet, others: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    lines = Path(fleet.config).read_text().rstrip().splitlines()
    for engine in others.engines:
        lines.append(f'  - {{id: {engine.role[0]}1, url: "{engine.url}", role: {engine.role}}}')
    lines.append("recovery: {readmit_ramp_s: 0.5}")
    folder = tmp_path_factory.mktemp("failures")
    with serving(folder, "\n".join(lines), prefill_timeout_s=8, max_attempts=3) as router:
        yield router


@pytest.fixture
def spare(pytestconfig: pytest.Config, producer: Engine) -> Iterator[Engine]:
    """One more engine that decodes, to be killed. It has had its first handoff.

    It shares a core with the producer, which may starve it then until the KV cache is given up after 30 s.
    """
    folder = pytestconfig.rootpath / "build" / "real-engines-3"
    with Fleet.up(folder, {"decode": 1}, say=lambda line: None) as fleet:
        spare = fleet.by_role("decode")
        prompt = long_prompt("First")
        handoff = complete(producer, prompt, 1, kv_transfer_params=PREFILL)["kv_transfer_params"]
        complete(spare, prompt, 2, kv_transfer_params=handoff)
        yield spare


def lifecycle(router: Router, what: str = "", *engines: str) -> dict[str, Any]:
    """Drain or readmit engines; where each stands."""
    data = json.dumps({"engines": engines}).encode() if what else None
    url = f"{router.url}/narwhal/lifecycle{'/' if what else ''}{what}"
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=10.0) as reply:
        return {engine["id"]: engine for engine in json.load(reply)["engines"]}


def serves(router: Router, *engines: str) -> bool:
    """Whether these serve."""
    where = lifecycle(router)
    return all(where[engine]["state"] == "serving" for engine in engines)


def back(router: Router, *engines: str) -> None:
    """Take these engines back, and see them serve: after a real handoff."""
    lifecycle(router, "readmit", *engines)
    assert eventually(lambda: serves(router, *engines), BACK_S), lifecycle(router)


def ask(router: Router, prompt: str, tokens: int) -> tuple[list[int], str]:
    """A whole answer's token IDs, and the request's ID."""
    raw = router.client.completions.with_raw_response.create(
        model="tiny", prompt=prompt, max_tokens=tokens, temperature=0,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )  # fmt: skip
    return token_ids(json.loads(raw.text)), raw.headers["x-request-id"]


def stop(engine: Engine) -> None:
    os.killpg(engine.pid, signal.SIGSTOP)


def test_an_engine_drained_under_load_finishes_what_it_has_and_comes_back_after_a_real_handoff(
    router: Router, producer: Engine
) -> None:
    prompts = [long_prompt(f"Drained {number}") for number in range(6)]
    with ThreadPoolExecutor(len(prompts)) as threads:
        answers = [threads.submit(ask, router, prompt, 200) for prompt in prompts]
        assert eventually(lambda: lifecycle(router)["d1"]["running"] > 0)
        d1 = lifecycle(router, "drain", "d1")["d1"]
        assert (d1["state"], d1["available"]) == ("draining", False)
        assert all(len(answer.result()[0]) == 200 for answer in answers)
    assert eventually(lambda: bool(lifecycle(router)["d1"]["safe_to_stop"]))
    ids, request = ask(router, prompts[0], 8)
    assert router.row(request)["attempts"][0]["decode"] == "d0"
    assert ids == token_ids(complete(producer, prompts[0], 8, ignore_eos=True))
    back(router, "d1")


def test_a_prefill_engine_that_stops_during_a_prefill_costs_time_but_no_answer(
    router: Router, others: Fleet, producer: Engine
) -> None:
    lifecycle(router, "drain", "p0")
    p1, prompt = others.by_role("prefill"), long_prompt("Stopped")
    stop(p1)
    try:
        with ThreadPoolExecutor(1) as threads:
            answer: Future[tuple[list[int], str]] = threads.submit(ask, router, prompt, 8)
            assert eventually(lambda: lifecycle(router)["p1"]["running"] == 1)
            lifecycle(router, "readmit", "p0")
            ids, request = answer.result()
    finally:
        os.killpg(p1.pid, signal.SIGCONT)
    first, second = router.row(request)["attempts"]
    assert (first["prefill"], first["failure"]) == ("p1", "engine_timeout")
    assert (second["prefill"], second["failure"]) == ("p0", None)
    assert ids == token_ids(complete(producer, prompt, 8, ignore_eos=True))
    assert eventually(lambda: serves(router, "p0", "p1"), BACK_S), lifecycle(router)


def test_when_the_only_decode_engine_is_killed_streams_end_with_an_error_and_whole_answers_are_computed_anew(
    router: Router, others: Fleet, producer: Engine
) -> None:
    lifecycle(router, "drain", "d0")
    streamed, whole = long_prompt("Killed"), long_prompt("Whole")
    with ThreadPoolExecutor(1) as threads:
        answers: list[Future[tuple[list[int], str]]] = []
        stream = router.client.completions.create(
            model="tiny", prompt=streamed, max_tokens=1000, temperature=0, stream=True,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        )  # fmt: skip
        ids: list[int] = []

        def read() -> None:
            for event in stream:
                ids.extend((event.choices[0].model_extra or {}).get("token_ids") or [])
                if not answers and len(ids) >= 5:
                    answers.append(threads.submit(ask, router, whole, 120))
                    assert eventually(lambda: lifecycle(router)["d1"]["running"] == 2)
                    os.killpg(others.by_role("decode").pid, signal.SIGKILL)

        with pytest.raises(openai.APIError) as ended:
            read()
        assert ended.value.code == "failed"
        assert "engine d1 " in ended.value.message
        assert len(ids) >= 5
        assert ids == token_ids(complete(producer, streamed, len(ids), ignore_eos=True))
        # With no decode engine left, one that prefills computes the whole answer.
        again, request = answers[0].result()
    attempts = router.row(request)["attempts"]
    assert [attempt["decode"] for attempt in attempts][:1] == ["d1"]
    assert attempts[-1]["prefill"] is None
    assert attempts[-1]["decode"] in ("p0", "p1")
    assert again == token_ids(complete(producer, whole, 120, ignore_eos=True))
    assert lifecycle(router)["d1"]["state"] == "ejected"
    back(router, "d0")
    _, request = ask(router, whole, 4)
    assert router.row(request)["attempts"][0]["decode"] == "d0"


@pytest.mark.long
def test_with_continue_streams_answers_whose_decode_engine_is_killed_are_those_of_one_engine_alone(
    fleet: Fleet, spare: Engine, producer: Engine, tmp_path: Path
) -> None:
    text = (
        Path(fleet.config)
        .read_text()
        .rstrip()
        .replace("role: decode}", "role: decode, decode_concurrency: 3}")
    )
    lines = [text, f'  - {{id: d2, url: "{spare.url}", role: decode}}', "recovery: {readmit_ramp_s: 0.5}"]
    prompts = [long_prompt(name) for name in ("Text", "Chat", "Whole")]
    more: dict[str, Any] = {"max_tokens": 300, "temperature": 0}
    extra = {"return_token_ids": True, "ignore_eos": True}
    keys = more | {
        "model": "tiny",
        "stream": True,
        "stream_options": {"include_usage": True},
        "extra_body": extra,
    }
    with (
        serving(tmp_path, "\n".join(lines), continue_streams=True) as router,
        ThreadPoolExecutor(3) as threads,
    ):
        client: Any = router.client
        # Others keep d0's seats until the answers have begun on d2.
        lifecycle(router, "drain", "d2")
        others = [
            client.completions.create(prompt=prompts[0], **keys | {"max_tokens": 1500}) for _ in range(3)
        ]
        back(router, "d2")
        whole = threads.submit(ask, router, prompts[2], 300)
        chat = [{"role": "user", "content": prompts[1]}]
        streams = [
            client.completions.create(prompt=prompts[0], logprobs=0, **keys),
            client.chat.completions.create(messages=chat, logprobs=True, **keys),
        ]
        parts = [threads.submit(lambda one: [event.to_dict() for event in one], one) for one in streams]
        assert eventually(lambda: lifecycle(router)["d2"]["running"] == 3)
        os.killpg(spare.pid, signal.SIGKILL)
        for one in others:
            one.close()
        text_events, chat_events = (part.result() for part in parts)
        ids, request = whole.result()
        for name in (request, *(one.response.headers["x-request-id"] for one in streams)):
            first, second = router.row(name)["attempts"]
            assert (first["decode"], first["failure"], second["decode"]) == ("d2", "broken_stream", "d0")
            assert second["continues_at"] > 0
    assert ids == token_ids(complete(producer, prompts[2], 300, ignore_eos=True))
    alone = complete(producer, prompts[0], 300, logprobs=0, ignore_eos=True)
    assert joined(text_events, "text") == alone["choices"][0]["text"]
    own = chat_alone(producer, prompts[1], logprobs=True, **more, **extra)
    assert joined(chat_events, "content") == own["choices"][0]["message"]["content"]
    for events, answer in ((text_events, alone), (chat_events, own)):
        assert len({(event["id"], event["created"]) for event in events}) == 1
        choices = [choice for event in events for choice in event["choices"]]
        assert [token for choice in choices for token in choice.get("token_ids") or []] == token_ids(answer)
        assert choices[-1]["finish_reason"] == "length"
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert events[-1]["usage"][key] == answer["usage"][key]
        for key, logprobs in answer["choices"][0]["logprobs"].items():
            lists = [choice["logprobs"].get(key) for choice in choices if choice.get("logprobs")]
            # The client has its own order of keys.
            got = json.loads(json.dumps([one for part in lists for one in part or []], sort_keys=True))
            own_words = json.loads(json.dumps(logprobs or [], sort_keys=True))
            assert_same_but_for_rounding(got, own_words, key)


def joined(events: list[dict[str, Any]], key: str) -> str:
    """The text of a stream."""
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(choice.get(key) or choice.get("delta", {}).get(key) or "" for choice in choices)
