"""How often the router may try again, and after what pause.

Retries must not feed an outage: when most legs fail, trying each again doubles the load on what is left. So
retries are paid for from one budget of the whole fleet: each request served puts a share of a retry in, each
retry takes one out, and what is saved is bounded.
"""

from __future__ import annotations

from random import Random

_LONGEST_PAUSE_S = 2.0


class RetryBudget:
    """Retries that may be made."""

    __slots__ = ("_reserve", "_share", "denied", "left")

    def __init__(self, share: float, reserve: int) -> None:
        """`share`: retries earned by each request served. `reserve`: what there is at first, and at most."""
        self._share = share
        self._reserve = reserve
        self.left = float(reserve)
        self.denied = 0  # retries that were not made for want of budget

    def served(self) -> None:
        """A request was served."""
        left = self.left + self._share
        self.left = left if left < self._reserve else float(self._reserve)

    def spend(self) -> bool:
        """Take one retry out; False, and the refusal counted, if there is not a whole one."""
        if self.left < 1.0:
            self.denied += 1
            return False
        self.left -= 1.0
        return True


def pause(attempts: int, base_s: float, random: Random) -> float:
    """Seconds to wait after `attempts` failed attempts: anywhere up to `base_s`, doubled with each attempt
    beyond the first."""
    return random.random() * min(_LONGEST_PAUSE_S, base_s * 2.0 ** (attempts - 1))
