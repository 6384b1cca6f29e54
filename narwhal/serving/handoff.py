"""A handoff on its way from the prefill leg to the decode leg.

The producer keeps the KV cache for some time only, and gives it away once. vLLM frees it after a lease (30 s)
and then does not refuse the decode leg: it answers from whatever lies there now. So the router never sends an
old handoff, nor one whose producer is another process by now. While it is on its way its producer must not be
stopped, so the fleet knows of it.
"""

from __future__ import annotations

from narwhal.fleet.lifecycle import Lifecycle


class Handoff:
    """One handoff. `let_go` of it once the decode leg answers, or will not be sent."""

    __slots__ = ("_generation", "_held", "_lifecycle", "cached_tokens", "expires", "params", "producer")

    def __init__(self, lifecycle: Lifecycle, producer: int, params: bytes, expires: float) -> None:
        """`params` go to the decode leg as they are; `expires` is monotonic."""
        life = lifecycle.lives[producer]
        life.handoffs += 1
        self.params = params
        self.cached_tokens: int | None = None  # of the prompt, by the producer; set by others
        self.expires = expires
        self.producer = producer
        self._generation = life.generation
        self._lifecycle = lifecycle
        self._held = True

    @property
    def lost(self) -> bool:
        """Whether its producer has been restarted, or is gone."""
        return self._lifecycle.lives[self.producer].generation != self._generation

    def let_go(self) -> None:
        """The producer need not keep it any more, as far as the router knows."""
        if self._held:
            self._held = False
            self._lifecycle.lives[self.producer].handoffs -= 1
