"""What each dialect makes of a client's body, byte for byte."""

from __future__ import annotations

import pytest

from narwhal._fast.body import Body
from narwhal.config import Dialect as Name
from narwhal.engines.dialects import DIALECTS, Dialect, HandoffError
from narwhal.request import CompletionRequest, Route, read

VLLM, OPENAI = DIALECTS[Name.VLLM], DIALECTS[Name.OPENAI]
PARAMS = (
    b'"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
HANDOFF = b'{"do_remote_prefill": true,  "blocks":[[1,2]],"big":123456789012345678901234567890,"x":1.50}'
SAMPLING = b'"big":123456789012345678901234567890 , "top_p":1.50e+00,"twice":1,"twice":2,"\\u0061":[ null]'


def request(raw: bytes, route: Route = Route.COMPLETIONS) -> CompletionRequest:
    return read(route, raw, model="m\u00fc", headers={})


def prefill(raw: bytes) -> bytes:
    return b"".join(VLLM.prefill_body(request(raw)))


def decode(raw: bytes, handoff: bytes | None = HANDOFF, dialect: Dialect = VLLM) -> bytes:
    return b"".join(dialect.decode_body(request(raw), handoff))


def test_what_the_router_does_not_read_reaches_both_legs_byte_for_byte() -> None:
    raw = b'{ "model":"m\\u00fc",\n\t"prompt" : "\\ud83d\\udc0b \\/" ,' + SAMPLING + b" }\r\n"
    assert prefill(raw) == raw[:-4] + b',"stream":false,"max_tokens":1,' + PARAMS + b" }\r\n"
    assert decode(raw) == (
        raw[:-4]
        + b',"stream":true,"return_token_ids":true,"stream_interval":1,'
        + b'"stream_options":{"include_usage":true},"kv_transfer_params":'
        + HANDOFF
        + b" }\r\n"
    )


def test_the_prefill_leg_asks_for_one_token_and_nothing_that_one_token_rules_out() -> None:
    raw = (
        b'{"model":"m\xc3\xbc","stream":true,"max_tokens":99,"min_tokens":7,"stream_options":{"include_usage":true},'
        b'"max_completion_tokens":50,"logprobs":3,"return_token_ids":true,"prompt":"x","kv_transfer_params":{"a":1}}'
    )
    assert prefill(raw) == (
        b'{"model":"m\xc3\xbc","stream":false,"max_tokens":1,"max_completion_tokens":1,"prompt":"x",'
        + PARAMS
        + b"}"
    )


def test_the_decode_leg_keeps_the_clients_limits_and_its_stream_options() -> None:
    raw = (
        b'{"model":"m\xc3\xbc","max_tokens":9,"min_tokens":7,"stream_interval":20,"prompt":"x",'
        b'"stream_options":{"other": 1.0,"include_usage":false,"continuous_usage_stats":true}}'
    )
    assert decode(raw) == (
        b'{"model":"m\xc3\xbc","max_tokens":9,"min_tokens":7,"stream_interval":1,"prompt":"x",'
        b'"stream_options":{"other": 1.0,"include_usage":true},"stream":true,"return_token_ids":true,'
        b'"kv_transfer_params":' + HANDOFF + b"}"
    )
    options = b'"stream_options":{"include_usage":true,"continuous_usage_stats":true}'
    own = b'{"model":"m\xc3\xbc","prompt":"x",' + options + b"}"
    assert own[:-1] in decode(own)


@pytest.mark.parametrize("model", [b"", b',"model":null'])
def test_both_legs_name_the_model_when_the_client_did_not(model: bytes) -> None:
    raw = b'{"prompt":"x"' + model + b"}"
    name = b'"model":"m\xc3\xbc"'
    for body in (prefill(raw), decode(raw), decode(raw, None), decode(raw, None, OPENAI)):
        assert body.count(name) == body.count(b'"model"') == 1
        assert Body(body).value("model") == "m\u00fc"


def test_a_whole_request_carries_no_handoff_of_the_clients() -> None:
    raw = b'{"model":"m\xc3\xbc","prompt":"x","kv_transfer_params":{"do_remote_prefill":true}}'
    assert b"kv_transfer_params" not in decode(raw, None)


def test_an_openai_engine_gets_the_clients_body_with_streaming_and_usage_and_nothing_of_vllms() -> None:
    raw = b'{"model":"m\xc3\xbc","prompt":"x",' + SAMPLING + b',"stream":false}'
    assert decode(raw, None, OPENAI) == raw[:-6] + b'true,"stream_options":{"include_usage":true}}'


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"{}", "no kv_transfer_params"),
        (b'{"kv_transfer_params":null}', "null"),
        (b'{"kv_transfer_params":{}}', "{}"),
        (b'{"kv_transfer_params":[1]}', "[1]"),
        (b'{"kv_transfer_params":"x"}', '"x"'),
        (b'{"kv_transfer_params":{"do_remote_prefill":false,"do_remote_decode":true}}', "do_remote_prefill"),
    ],
)
def test_a_reply_without_a_usable_handoff_is_turned_down_saying_what_it_had(reply: bytes, why: str) -> None:
    with pytest.raises(HandoffError) as caught:
        VLLM.read_handoff(Body(reply))
    assert why in str(caught.value)


def test_the_handoff_is_taken_as_the_engine_wrote_it() -> None:
    assert VLLM.read_handoff(Body(b'{"id": 1, "kv_transfer_params" : ' + HANDOFF + b" }")) == HANDOFF
