"""A reply's head says truly how its body is framed."""

from __future__ import annotations

import pytest

from narwhal._fast.heads import parse_response_head
from narwhal.serving.replies import stream_head


@pytest.mark.parametrize(("framed", "close"), [(True, False), (True, True), (False, True), (False, False)])
def test_a_stream_is_chunked_or_else_ends_with_its_connection(framed: bool, close: bool) -> None:
    parsed = parse_response_head(stream_head("req-1", framed=framed, close=close))
    assert parsed is not None
    head = parsed[1]
    assert head["chunked"] is framed
    assert head["content_length"] == -1
    assert head["keep_alive"] is (framed and not close)
