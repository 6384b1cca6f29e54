"""What a request waits for: one result or one error, once.

An event loop's future does the same for whoever cares to wait, with callbacks, contexts and a task at the
other end. A request is the only one who waits for what it waits for, so this calls it back and no more. As a
rule it does so in the loop's next turn, since who brings the result is in the middle of something. An
engine's connection that brings a reply allows for anything to happen within its call, so that a request may
go on at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any


class Awaited:
    """To be awaited once, in a coroutine that `resume` goes on with. A result may be there before that.

    `at_once`: it goes on from within the call that brings a result; never from within one with an error.
    """

    __slots__ = ("_at_once", "_awaited", "_done", "_error", "_loop", "_result", "_resume")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, resume: Callable[[], None], at_once: bool = False
    ) -> None:
        self._loop = loop
        self._resume = resume
        self._at_once = at_once
        self._result: Any = None
        self._error: BaseException | None = None
        self._done = False
        self._awaited = False

    def done(self) -> bool:
        """Whether the result is there, or the error."""
        return self._done

    def set_result(self, result: Any, /) -> None:
        """Have the coroutine go on with a result. Raises RuntimeError if there is one already."""
        self._result = result
        self._settle(self._at_once)

    def set_exception(self, error: BaseException, /) -> None:
        """Have the coroutine go on with an error. Raises RuntimeError if there is a result already."""
        self._error = error
        self._settle(False)

    def _settle(self, at_once: bool) -> None:
        if self._done:
            raise RuntimeError("what was waited for came twice")
        self._done = True
        if self._awaited and at_once:
            self._resume()
        elif self._awaited:
            self._loop.call_soon(self._resume)

    def __await__(self) -> Generator[None, None, Any]:
        if not self._done:
            self._awaited = True
            yield
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._result
