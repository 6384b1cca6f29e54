"""From the fleet file's text to a FleetConfig.

Reading goes on after a problem, so that one run reports all of them. Only when there is none is anything
built: a FleetConfig that exists is a valid one.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from narwhal.config.document import (
    MAX_FILE_BYTES,
    Entry,
    Mappings,
    compose,
    is_list,
    is_mapping,
    line_of,
    scalar,
    show,
)
from narwhal.config.kinds import Surroundings, Unfit
from narwhal.config.model import (
    Dialect,
    EngineConfig,
    EngineDefaults,
    FleetConfig,
    Key,
    ProfilesConfig,
    RecoveryConfig,
    Role,
    Section,
    ServingConfig,
    Slo,
)
from narwhal.config.problems import ConfigError, Problem
from narwhal.config.table import describe, keys_of, required_of

if TYPE_CHECKING:
    from yaml.nodes import Node

MAX_ENGINES = 10_000
MAX_PROBLEMS = 1000  # reading ends there


def load(path: str | Path, environ: Mapping[str, str] = os.environ) -> FleetConfig:
    """Read a fleet file. Relative paths in it start at its folder. Raises ConfigError, for a missing file
    too."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)  # one more, so that a file too large is seen to be so
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(str(path), [Problem("", 0, f"can't be read: {reason}", "")]) from None
    return parse(text, str(path), environ, path.parent)


def parse(
    text: str | bytes,
    source: str,
    environ: Mapping[str, str] = os.environ,
    base: Path | None = None,
) -> FleetConfig:
    """Read a fleet file's text; `source` names it in messages, relative paths start at `base` (else the
    current folder). Raises ConfigError with every problem."""
    root = compose(text, source)
    if root is None or not is_mapping(root):
        seen = "an empty file" if root is None else show(root)
        line = 0 if root is None else line_of(root)
        required = ", ".join(required_of(FleetConfig))
        raise ConfigError(source, [Problem("", line, seen, f"a mapping with the keys {required}")])
    reader = _Reader(source, Surroundings(environ, base or Path()))
    written = reader.section(FleetConfig, root, "")
    engines = reader.engines(written)
    if reader.problems:
        raise ConfigError(source, reader.problems)
    return FleetConfig(
        model=written["model"].value,
        slo=Slo(**_values(written["slo"].value)),
        engines=engines,
        serving=ServingConfig(**_section_values(written, "serving")),
        engine=EngineDefaults(**_section_values(written, "engine")),
        profiles=ProfilesConfig(**_section_values(written, "profiles")),
        recovery=RecoveryConfig(**_section_values(written, "recovery")),
    )


@dataclass(frozen=True, slots=True)
class _Written:
    """A value that the file gives: a scalar, a section's values by key, or a list of those."""

    line: int
    value: Any


def _values(section: dict[str, _Written]) -> dict[str, Any]:
    return {name: written.value for name, written in section.items()}


def _section_values(written: dict[str, _Written], name: str) -> dict[str, Any]:
    return _values(written[name].value) if name in written else {}


class _Reader:
    """Collects problems while it reads."""

    def __init__(self, source: str, around: Surroundings) -> None:
        self.problems: list[Problem] = []
        self._source = source
        self._around = around
        self._mappings = Mappings(self.problems)

    def _report(self, path: str, line: int, seen: str, allowed: str) -> None:
        self.problems.append(Problem(path, line, seen, allowed))
        if len(self.problems) > MAX_PROBLEMS:  # a list of engines by alias can repeat one problem without end
            raise ConfigError(self._source, self.problems)

    def section(self, table: type, node: Node, path: str) -> dict[str, _Written]:
        """The values that a mapping gives to the keys of `table`; those in error are left out."""
        if not is_mapping(node):
            if scalar(node) is not None:
                self._report(path, line_of(node), show(node), f"a mapping with the keys {_list(table)}")
                return {}
            given: dict[str, Entry] = {}  # `serving:` with every key below it commented out
        else:
            given = self._mappings.entries(node, path)
        keys = keys_of(table)
        written: dict[str, _Written] = {}
        for name, entry in given.items():
            full = _join(path, name)
            key = keys.get(name)
            if key is None:
                self._report(full, entry.line, f"an unknown key{_meant(table, name)}", _list(table))
                continue
            found = self._value(key, name in required_of(table), entry.value, full)
            if found is not None:
                written[name] = _Written(entry.line, found)
        for name in required_of(table):
            if name not in given:
                key = keys[name]
                allowed = key.kind.allowed if isinstance(key, Key) else key.doc
                self._report(_join(path, name), line_of(node), "nothing", f"{allowed} (the key is required)")
        return written

    def _value(self, key: Key | Section, required: bool, node: Node, path: str) -> Any:
        """What a key's node says; None when it says nothing or a problem was found."""
        if isinstance(key, Section):
            return self._list(key, node, path) if key.many else self.section(key.table, node, path)
        value = scalar(node)
        if value is None and not required:
            return None  # `keepalive_s:` and `keepalive_s: null` are as good as absent
        try:
            return key.kind.read(value, self._around)
        except Unfit as unfit:
            allowed = unfit.allowed or key.kind.allowed
            self._report(path, line_of(node), unfit.seen or show(node), allowed)
            return None

    def _list(self, key: Section, node: Node, path: str) -> list[_Written] | None:
        if not is_list(node) or not 1 <= len(node.value) <= MAX_ENGINES:
            allowed = f"a list of 1 to {MAX_ENGINES} mappings with {_list(key.table)}"
            self._report(path, line_of(node), show(node), allowed)
            return None
        return [
            _Written(line_of(item), self.section(key.table, item, f"{path}[{index}]"))
            for index, item in enumerate(node.value)
        ]

    def engines(self, written: dict[str, _Written]) -> tuple[EngineConfig, ...]:
        """The engines with what they inherit filled in, and what they contradict reported. Empty if any of
        them has a problem."""
        if "engines" not in written:
            return ()
        items: list[_Written] = written["engines"].value
        inherited: dict[str, Any] = {}
        for name, key in keys_of(EngineConfig).items():
            if isinstance(key, Key) and key.inherits:
                section, _, other = key.inherits.partition(".")
                values = _section_values(written, section)
                if other in values:
                    inherited[name] = values[other]
        self._unique(items, "id")
        self._unique(items, "url")
        engines: list[EngineConfig] = []
        for index, item in enumerate(items):
            values = inherited | _values(item.value)
            if values.get("dialect") is Dialect.OPENAI and values.get("role") not in (Role.BOTH, None):
                line = item.value["role"].line
                allowed = "both, since an engine of dialect openai can't hand a prefill over"
                self._report(f"engines[{index}].role", line, values["role"], allowed)
            if all(name in values for name in required_of(EngineConfig)):
                engines.append(EngineConfig(**values))
        self._paired(written["engines"].line, items)
        return tuple(engines)

    def _unique(self, items: list[_Written], name: str) -> None:
        first: dict[Hashable, int] = {}
        for index, item in enumerate(items):
            if name in item.value:
                value, line = item.value[name].value, item.value[name].line
                other = first.setdefault(value, index)
                if other != index:
                    where = items[other].value[name].line
                    allowed = f"one that differs from engines[{other}].{name} (line {where})"
                    self._report(f"engines[{index}].{name}", line, f'"{value}"', allowed)

    def _paired(self, line: int, items: list[_Written]) -> None:
        roles = [item.value["role"].value for item in items if "role" in item.value]
        if len(roles) < len(items):
            return  # an unread role may be the missing one
        for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
            if role in roles and other not in roles:
                allowed = f"at least one engine with role {other} too, or engines with role both alone"
                self._report(
                    "engines", line, f"an engine with role {role} but none with role {other}", allowed
                )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _list(table: type) -> str:
    return ", ".join(keys_of(table))


def _meant(table: type, name: str) -> str:
    """The key that an unknown one was probably meant to be, here or in another section.

    It comes before what is allowed, which may be a long list.
    """
    key, glued, value = name.partition(":")
    if glued and key in keys_of(table):
        return f" (did you mean {key}: {value[:64]}, with a space?)"
    near = difflib.get_close_matches(name[:64], keys_of(table), n=1, cutoff=0.7)
    if not near:
        near = [row.path for row in describe() if row.path.rpartition(".")[2] == name][:1]
    return f" (did you mean {near[0]}?)" if near else ""
