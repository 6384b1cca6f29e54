"""What a fleet file that is read again changes: engines that are new, gone, or have other limits.

An engine keeps its ID, and with it its place and its figures, so its address and what it is for can't change
under it: a changed engine needs another ID. All else in the file is read at the start only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from narwhal.config import ConfigError, EngineConfig, FleetConfig, Problem

_FIXED = ("url", "role", "dialect")
# What these say, engines say: a change of theirs is one of engines.
_ENGINES = ("engines", "serving.prefill_concurrency", "serving.decode_concurrency")


class Changes(NamedTuple):
    """What is to be done. Engines by ID."""

    added: list[EngineConfig]
    returned: list[str]  # they had been taken out before
    removed: list[str]
    limited: dict[str, EngineConfig]  # their seats are others
    ignored: list[str]  # keys that changed, to no effect before a restart

    @property
    def in_words(self) -> str:
        """For the log."""
        parts = [
            f"{what} {', '.join(names)}"
            for what, names in (
                ("added", [engine.id for engine in self.added]),
                ("took back", self.returned),
                ("drains", self.removed),
                ("changed the seats of", list(self.limited)),
                ("left as they are until a restart:", self.ignored),
            )
            if names
        ]
        return "; ".join(parts) or "no change"


def compare(config: FleetConfig, removed: set[str], new: FleetConfig, source: str) -> Changes:
    """What `new` changes in a fleet that is as `config` says, less what was `removed` before.

    Raises ConfigError, naming the file `source`, for what can't be changed.
    """
    known = {engine.id: engine for engine in config.engines}
    wanted = {engine.id: engine for engine in new.engines}
    problems = [
        Problem(
            f"engines[{index}].{name}",
            0,
            f"{getattr(engine, name)} in place of {getattr(known[engine.id], name)} for {engine.id}",
            "the same as before; give a changed engine another id, or restart the router",
        )
        for index, engine in enumerate(new.engines)
        if engine.id in known
        for name in _FIXED
        if getattr(engine, name) != getattr(known[engine.id], name)
    ]
    if problems:
        raise ConfigError(source, problems)
    return Changes(
        added=[engine for name, engine in wanted.items() if name not in known],
        returned=[name for name in wanted if name in removed],
        removed=[name for name in known if name not in wanted and name not in removed],
        limited={name: engine for name, engine in wanted.items() if name in known and engine != known[name]},
        ignored=list(_differing(config, new)),
    )


def _differing(before: Any, after: Any, section: str = "") -> Iterator[str]:
    for item in fields(before):
        key, one, other = section + item.name, getattr(before, item.name), getattr(after, item.name)
        if key in _ENGINES or one == other:
            continue
        if is_dataclass(one):
            yield from _differing(one, other, f"{key}.")
        else:
            yield key
