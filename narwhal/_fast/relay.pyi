from typing import Protocol

from narwhal._fast.assemble import Assembler
from narwhal._fast.outlet import Outlet
from narwhal._fast.recall import Recall

class Owner(Protocol):
    def on_output(self) -> None: ...
    def on_end(self) -> None: ...

class Join(Protocol):
    def event(self, data: bytes) -> bytes | None: ...

class Relay:
    started_at: float
    first_at: float
    last_at: float
    heard_at: float
    tokens: int
    output_events: int
    carried: int
    unjoinable: bool
    dropped_after_done: int
    prompt_tokens: int
    completion_tokens: int
    finished: bool
    usage_told: bool
    failure: str | None
    failure_message: str | None
    error_object: bytes | None
    def __init__(
        self,
        owner: Owner,
        *,
        outlet: Outlet | None = None,
        head: bytes = b"",
        framed: bool = True,
        keep_ids: bool = False,
        keep_usage: bool = False,
        limit: int = 16777216,
        recall: Recall | None = None,
    ) -> None: ...
    def begin(
        self,
        need_ids: bool,
        assembler: Assembler | None = None,
        join: Join | None = None,
    ) -> None: ...
    def set_cached_tokens(self, cached_tokens: int | None) -> None: ...
    @property
    def done(self) -> bool: ...
    @property
    def under_way(self) -> bool: ...
    @property
    def output_sent(self) -> bool: ...
    def output_tokens(self) -> tuple[int, str]: ...
    def comment(self) -> None: ...
    def end_with(self, event: bytes) -> None: ...
    def release(self) -> None: ...
    def abandon(self) -> None: ...
    def feed(self, payload: bytes) -> None: ...
    def end_feed(self) -> None: ...
