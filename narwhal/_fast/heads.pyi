from typing import TypedDict

class ResponseHead(TypedDict):
    status: int
    minor_version: int
    content_length: int
    chunked: bool
    keep_alive: bool
    event_stream: bool
    retry_after: int

def check_request_head(head: bytes) -> tuple[int, bool]: ...
def parse_response_head(data: bytes | bytearray | memoryview) -> tuple[int, ResponseHead] | None: ...
