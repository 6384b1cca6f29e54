import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from narwhal._fast.reactor import Reactor

_Result = TypeVar("_Result")

class Loop(asyncio.SelectorEventLoop):
    reactor: Reactor | None

def run(main: Coroutine[Any, Any, _Result]) -> _Result: ...
