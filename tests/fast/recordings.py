"""The recorded event streams of real engines: what was asked, and the payload that came."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.fast.oracles import chunked

FOLDER = Path(__file__).parent.parent / "data" / "streams" / "vllm-0.32"


class Recording(NamedTuple):
    """One reply that is an event stream."""

    name: str
    chat: bool
    request: dict[str, Any]
    payload: bytes

    @property
    def has_ids(self) -> bool:
        """Whether the engine was asked for token IDs."""
        return bool(self.request.get("return_token_ids"))


@cache
def event_streams() -> list[Recording]:
    """All recorded event streams."""
    index = json.loads((FOLDER / "index.json").read_text())
    found = []
    for entry in index["recordings"]:
        head, _, body = (FOLDER / entry["file"]).read_bytes().partition(b"\r\n\r\n")
        if b"text/event-stream" in head:
            payload = chunked.decode(body).payload if b"chunked" in head else body
            found.append(Recording(entry["name"], "/chat/" in entry["path"], entry["request"], payload))
    return found
