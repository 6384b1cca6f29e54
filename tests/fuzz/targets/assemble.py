"""Events put together into a whole response.

An input is a byte of switches, and the events with an empty line between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from narwhal._fast.assemble import Assembler, AssemblyError
from tests.fast.engine_streams import Writer
from tests.fast.oracles import assemble as oracle
from tests.fuzz import changes
from tests.recordings import recordings

_NAMES = """
    choices usage object id created metrics service_tier token_ids prompt_token_ids prompt_text delta text
    index logprobs finish_reason stop_reason content role reasoning reasoning_content refusal tool_calls
    function_call type function name arguments tokens token_logprobs top_logprobs text_offset
    prompt_tokens_details cached_tokens queue_time_ms audio prompt_tokens total_tokens completion_tokens x
"""
NAMES = tuple(_NAMES.encode().split())
LIMIT = 1 << 20


def _input(events: list[bytes], switches: int) -> bytes:
    return bytes([switches]) + b"\n\n".join(events)


def seeds() -> Iterator[bytes]:
    """Streams recorded and written."""
    for name, recording in recordings().items():
        if name.endswith("-stream"):
            texts = [text.removeprefix(b"data: ") for text in recording.payload.split(b"\n\n")[:-2]]
            for switches in (0, 2, 4):
                yield _input([*texts[:2], *texts[-3:]], switches | ("chat" in recording.path))
    random = Random(4)
    for switches in range(16):
        for odd in (False, True, False, True):
            yield _input(Writer(random.randbytes(500), bool(switches & 1), odd).stream(), switches)


def change(data: bytes, random: Random) -> bytes:
    """Another switch, or another event."""
    if not data or random.random() < 0.03:
        return bytes([random.randrange(16)]) + data[1:]
    events = data[1:].split(b"\n\n")
    at = random.randrange(len(events))
    kind = random.randrange(20)
    if kind == 0:
        events[at:at] = [random.choice(events)]
    elif kind == 1:
        del events[at]
    else:
        events[at] = changes.json_text(events[at], random, NAMES)
    return _input(events, data[0])


def _check_limit(assemble: Callable[[int], bytes], size: int) -> None:
    try:
        assemble(size - 1)
    except AssemblyError as error:
        if error.too_large:
            return
    raise AssertionError("the limit is not kept")


def check(data: bytes) -> None:
    """The response is the oracle's, or the same field is at fault; what is no JSON at all is refused."""
    switches = data[0] if data else 0
    events = data[1:].split(b"\n\n")
    chat, keep_ids = bool(switches & 1), bool(switches & 2)
    shape = "openai" if switches & 4 else "vllm"
    counts = (11, 3, 8 if switches & 8 else -1)
    malformed = False
    try:
        expected = repr(oracle.assemble(events, chat, keep_ids, shape, counts))
    except oracle.Wrong as wrong:
        expected = f"wrong: {wrong}"
    except ValueError:
        malformed = True
        expected = "not JSON"

    def assemble(limit: int) -> bytes:
        assembler = Assembler(chat, keep_ids, limit, shape)
        for event in events:
            assembler.add_event(event)
        return assembler.finish(*counts)

    try:
        response = assemble(LIMIT)
        _check_limit(assemble, len(response))
        seen = repr(oracle.plain(oracle.load(response)))
    except AssemblyError as error:
        # Of text that is no JSON, what comes before the fault may be at fault too.
        seen = expected if malformed else f"wrong: {error.field}"
    assert seen == expected, f"{seen}\n{expected}"
