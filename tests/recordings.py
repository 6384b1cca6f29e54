"""What real engines answered, as tools/record_streams.py kept it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tools.record_streams import unchunk

FOLDER = Path(__file__).parent / "data" / "streams" / "vllm-0.32"


@dataclass(frozen=True, slots=True)
class Recording:
    """One answer, and what was asked."""

    name: str
    about: str
    status: int
    method: str
    path: str
    request: Any  # the body as JSON; a string if it was not JSON; None for a GET
    raw: bytes  # as it came from the socket

    @property
    def head(self) -> bytes:
        """The status line and the headers, with the empty line."""
        return self.raw[: self.raw.index(b"\r\n\r\n") + 4]

    @property
    def payload(self) -> bytes:
        """The body, free of chunk sizes."""
        body = self.raw[len(self.head) :]
        return unchunk(body) if b"\r\ntransfer-encoding: chunked\r\n" in self.head.lower() else body

    @property
    def reply(self) -> Any:
        """The body of a whole reply, as JSON."""
        return json.loads(self.payload)

    @property
    def events(self) -> list[Any]:
        """The JSON of each event of a stream, `[DONE]` left out."""
        texts = self.payload.decode().split("\n\n")
        return [json.loads(text[6:]) for text in texts if text and text != "data: [DONE]"]


@cache
def recordings() -> dict[str, Recording]:
    """All recordings by name."""
    index = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))
    found = {}
    for row in index["recordings"]:
        raw = (FOLDER / row.pop("file")).read_bytes()
        found[row["name"]] = Recording(**row, raw=raw)
    return found


def pairs() -> dict[str, tuple[Recording, Recording]]:
    """By name: the stream and the whole reply to the same request, same tokens and all."""
    found = recordings()
    return {
        name.removesuffix("-stream"): (found[name], found[whole])
        for name in found
        if name.endswith("-stream") and (whole := f"{name.removesuffix('-stream')}-whole") in found
    }
