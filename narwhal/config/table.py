"""The table of keys as rows, for people and for the reader."""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, fields
from functools import cache

from narwhal.config.model import FleetConfig, Key, Section


@cache
def keys_of(table: type) -> dict[str, Key | Section]:
    """The keys of one section by name."""
    return {item.name: item.metadata["narwhal"] for item in fields(table)}


@cache
def required_of(table: type) -> tuple[str, ...]:
    """The keys that a section must have."""
    return tuple(item.name for item in fields(table) if _default(item) is MISSING)


def _default(item: Field[object]) -> object:
    return item.default if item.default_factory is MISSING else item.default_factory


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One key of the fleet file."""

    path: str  # `engines[].role`
    default: str  # as it would be written; "required", "none", or the key it is taken from
    allowed: str
    doc: str


def _written(default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return "none" if default is None else str(default)


def describe(table: type = FleetConfig, prefix: str = "") -> list[KeyRow]:
    """Every key of the fleet file, in the order of the table."""
    rows: list[KeyRow] = []
    for item in fields(table):
        path, entry = prefix + item.name, item.metadata["narwhal"]
        if isinstance(entry, Section):
            rows += describe(entry.table, path + ("[]." if entry.many else "."))
            continue
        required = item.default is MISSING
        default = "required" if required else entry.inherits or _written(item.default)
        rows.append(KeyRow(path, default, entry.kind.allowed, entry.doc))
    return rows
