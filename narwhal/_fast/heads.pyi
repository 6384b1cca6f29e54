from typing import TypedDict

class ResponseHead(TypedDict):
    status: int
    minor_version: int
    content_length: int
    chunked: bool
    keep_alive: bool
    event_stream: bool
    retry_after: int

def read_request_head(head: bytes) -> tuple[str, bytes, dict[bytes, bytes], bool, bool, int, bool]: ...
def parse_response_head(data: bytes | bytearray | memoryview) -> tuple[int, ResponseHead] | None: ...
