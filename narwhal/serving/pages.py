"""What pages are made of: an answer, or the slow part of one; and the body of a control page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from narwhal.outcomes import Ending
from narwhal.serving import replies

Answer = tuple[int, bytes, str]  # status, body, content type
Later = Callable[[], Answer]  # the slow part of a page, for another thread

_SHOWN = 64  # characters of a name or value that a message repeats


def as_json(value: object, status: int = 200) -> Answer:
    """An answer in JSON."""
    return status, orjson.dumps(value), replies.JSON


def fields_of(body: bytes, names: tuple[str, ...]) -> dict[str, Any]:
    """The members of a body, which may have these names. Raises Ending."""
    try:
        wanted = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Ending("invalid_json", f"the body is not valid JSON: {error}") from None
    if not isinstance(wanted, dict):
        raise Ending("invalid_body", "the body must be a JSON object")
    for name in wanted:
        if name not in names:
            known = " and ".join(f"`{one}`" for one in names)
            message = f"there is no field `{name[:_SHOWN]}`; there are {known}"
            raise Ending("invalid_field", message, param=name[:_SHOWN])
    return wanted


def wrong(name: str, allowed: str, seen: object) -> Ending:
    """A member that is not as it must be."""
    shown = "nothing" if seen is None else orjson.dumps(seen).decode()[:_SHOWN]
    return Ending("invalid_field", f"`{name}` must be {allowed}; got {shown}", param=name)
