"""The checks of a body's lists, on decoded ones. Each gives the path of the first fault, or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _first(name: str, items: list[Any], wrong: Callable[[Any], bool]) -> str | None:
    return next((f"{name}[{i}]" for i, item in enumerate(items) if wrong(item)), None)


def messages(items: list[Any]) -> str | None:
    """At least one, each an object with a string as its role."""
    for i, item in enumerate(items):
        if not isinstance(item, dict):
            return f"messages[{i}]"
        if not isinstance(item.get("role"), str):
            return f"messages[{i}].role"
    return None if items else "messages"


def tools(items: list[Any]) -> str | None:
    """Each an object."""
    return _first("tools", items, lambda item: not isinstance(item, dict))


def foreign_tool(items: list[Any]) -> str | None:
    """Each, of objects, a function."""
    return _first("tools", items, lambda item: item.get("type") not in (None, "function"))


def modalities(items: list[Any]) -> str | None:
    """Each a string."""
    return _first("modalities", items, lambda item: not isinstance(item, str))


def prompt(value: Any) -> int | str:
    """The number of token IDs, -1 for text; the path of the fault of one that is neither."""
    if isinstance(value, str):
        return -1
    if not value:
        return "prompt"
    if isinstance(value[0], list):
        found = _ids("prompt[0]", value[0])
        return "prompt" if isinstance(found, int) and len(value) > 1 else found
    if isinstance(value[0], str):
        return "prompt" if len(value) > 1 else -1
    return _ids("prompt", value)


def _ids(name: str, items: list[Any]) -> int | str:
    wrong = _first(name, items, lambda item: type(item) is not int or not 0 <= item < 2**31)
    return wrong or len(items) or name
