class AssemblyError(ValueError):
    field: str
    too_large: bool
    def __init__(self, message: str, field: str, too_large: bool = False) -> None: ...

class Assembler:
    finished: bool
    size: int
    error: str | None
    error_field: str | None
    too_large: bool
    def __init__(self, chat: bool, keep_ids: bool, limit: int, shape: str = "vllm") -> None: ...
    def add_event(self, text: bytes) -> None: ...
    def finish(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = -1) -> bytes: ...
