from collections.abc import Iterable
from typing import NamedTuple

class Scan(NamedTuple):
    has_output: bool
    finished: bool
    choices: int
    ids: int
    id_count: int
    ids_error: str | None
    error_object: tuple[int, int] | None
    has_usage: bool
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cached_value: tuple[int, int] | None
    spans: tuple[tuple[int, int], ...]

class Beginning:
    @property
    def text(self) -> bytes: ...

def scan(data: bytes, beginning: Beginning | None = None) -> Scan: ...
def excise(data: bytes) -> bytes: ...
def tally(events: Iterable[bytes]) -> tuple[int, int]: ...
