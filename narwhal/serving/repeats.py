"""Warnings that come with every request while something lasts, such as an engine's failing.

The first of a kind is logged at once. As long as more of its kind come, `flush`, which is called once a
second, logs the latest of them and how many it stands for; so a kind has about a line a second, however much
there is of it, and nothing goes uncounted.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(slots=True)
class _Held:
    """What came of a kind since it was last logged."""

    count: int = 0
    latest: str = ""


class Repeats:
    """Logs warnings, and few of each kind. Kinds must be of a bounded number."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._held: dict[Hashable, _Held] = {}

    def warn(self, kind: Hashable, message: str) -> None:
        """Log a message, unless one of its kind was logged since the flush before last."""
        held = self._held.get(kind)
        if held is None:
            self._held[kind] = _Held()
            self._log.warning("%s", message)
        else:
            held.count += 1
            held.latest = message

    def flush(self) -> None:
        """Log what was held back."""
        for kind, held in list(self._held.items()):
            if not held.count:
                del self._held[kind]
                continue
            more = f" ({held.count - 1} more like this)" if held.count > 1 else ""
            self._log.warning("%s%s", held.latest, more)
            self._held[kind] = _Held()
