from selectors import SelectorKey

from narwhal._fast.awake import Expectation
from narwhal._fast.reactor import Reactor

class Selector:
    expectation: Expectation
    def __init__(self, reactor: Reactor) -> None: ...
    @property
    def crowded(self) -> bool: ...
    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]: ...
