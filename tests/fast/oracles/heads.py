"""HTTP/1 heads, read with regular expressions over the whole head."""

from __future__ import annotations

import re

_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])( [\t\x20-\x7e\x80-\xff]*)?")
_REQUEST_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+ [!-~]+ HTTP/1\.([01])")

Fields = list[tuple[bytes, bytes]]


def _fields(lines: list[bytes]) -> Fields | None:
    """The fields of a head, names in lower case, or None if a line is malformed."""
    matches = [_FIELD.fullmatch(line) for line in lines]
    found = [(match[1].lower(), match[2]) for match in matches if match]
    return found if len(found) == len(lines) else None


def _all(fields: Fields, name: bytes) -> list[bytes]:
    return [value for key, value in fields if key == name]


def _elements(fields: Fields, name: bytes) -> list[bytes]:
    return [part.strip(b" \t") for value in _all(fields, name) for part in value.split(b",")]


def _framing(fields: Fields, minor_version: int, *, request: bool) -> tuple[int, bool] | None:
    """(Content-Length or -1, chunked), or None if they are malformed."""
    lengths = _elements(fields, b"content-length")
    codings = [value.lower() for value in _all(fields, b"transfer-encoding")]
    if codings and (codings != [b"chunked"] or lengths or minor_version == 0):
        return None
    if any(not re.fullmatch(rb"[0-9]{1,19}", length) for length in lengths):
        return None
    if request and len(lengths) > 1:
        return None
    values = {int(length) for length in lengths}
    if len(values) > 1 or any(value >= 2**63 for value in values):
        return None
    return (values.pop() if values else -1), bool(codings)


def read_response(data: bytes) -> tuple[int, dict[str, int]] | None:
    """What parse_response_head returns for input with a whole head in it, or None if that is malformed."""
    head, _, _ = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    status_line = _STATUS_LINE.fullmatch(first)
    fields = _fields(lines)
    if not status_line or fields is None:
        return None
    minor_version = int(status_line[1])
    framing = _framing(fields, minor_version, request=False)
    if framing is None:
        return None
    options = [option.lower() for option in _elements(fields, b"connection")]
    media_type = (_all(fields, b"content-type") or [b""])[-1].split(b";")[0].strip(b" \t").lower()
    wait = (_all(fields, b"retry-after") or [b""])[-1]
    return len(head) + 4, {
        "status": int(status_line[2]),
        "minor_version": minor_version,
        "content_length": framing[0],
        "chunked": framing[1],
        "keep_alive": b"close" not in options and (minor_version == 1 or b"keep-alive" in options),
        "event_stream": media_type == b"text/event-stream",
        "retry_after": int(wait) if re.fullmatch(rb"[0-9]{1,19}", wait) and int(wait) < 2**63 else -1,
    }


def check_request(head: bytes) -> tuple[int, bool] | None:
    """What read_request_head says of the body, or None if it refuses the head."""
    text, end, after = head.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    first, *lines = text.split(b"\r\n")
    request_line = _REQUEST_LINE.fullmatch(first)
    fields = _fields(lines)
    if not end or after or not request_line or fields is None:
        return None
    minor_version = int(request_line[1])
    hosts = len(_all(fields, b"host"))
    if hosts > 1 or (hosts == 0 and minor_version == 1):
        return None
    return _framing(fields, minor_version, request=True)
