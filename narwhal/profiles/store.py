"""The profile file: what `narwhal profile` measured on each engine, when, and on which process of it.

JSON, with a version. Points are kept beside the fits, so that curves can be drawn and fitted anew. The file
is written whole and put in place at once: a reader sees the old one or the new one. Reading checks every
figure and reports all problems together, each with the path of its key. An engine may be missing, and so
may a curve.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeGuard, TypeVar

import orjson

from narwhal.profiles.curves import DecodeCurve, HandoffCurve, PrefillCurve
from narwhal.profiles.fit import TimedBatch, TimedLength
from narwhal.profiles.model import EngineModel

FORMAT, VERSION = "narwhal-profiles", 1
_MOST_PROBLEMS = 10  # that are named one by one

C = TypeVar("C", PrefillCurve, DecodeCurve, HandoffCurve)
P = TypeVar("P", TimedLength, TimedBatch)


class ProfileError(Exception):
    """A profile file can't be read or written; the message names the file and each problem."""


@dataclass(frozen=True, slots=True)
class Measured(Generic[C, P]):
    """A curve, and the points it was fitted to."""

    curve: C
    points: tuple[P, ...]


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """What was measured on one engine."""

    url: str
    model: str
    measured_at: datetime
    process_start_time: float | None  # of the engine's process, in Unix seconds; None: it didn't tell
    prefill: Measured[PrefillCurve, TimedLength] | None = None
    decode: Measured[DecodeCurve, TimedBatch] | None = None
    handoff: Measured[HandoffCurve, TimedLength] | None = None

    def engine_model(self) -> EngineModel:
        """A model that starts from these curves."""
        return EngineModel(
            self.prefill.curve if self.prefill else None,
            self.decode.curve if self.decode else None,
            self.handoff.curve if self.handoff else None,
        )


Profiles = Mapping[str, EngineProfile]  # by engine ID


def check_folder(path: Path) -> None:
    """Raise ProfileError if the file could not be written; for before one has what to write."""
    folder = path.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ProfileError(f"{path} can't be written: {folder} is no folder that can be written to")


def write(path: Path, profiles: Profiles) -> None:
    """Write the file, in place of what is there. Raises ProfileError."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "engines": {engine: _to_json(profile) for engine, profile in profiles.items()},
    }
    data = orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise ProfileError(f"{path} can't be written: {error.strerror or error}") from None


def read(path: Path) -> dict[str, EngineProfile]:
    """The profiles in a file, by engine ID. Raises ProfileError; also if there is no such file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ProfileError(f"{path} can't be read: {error.strerror or error}") from None
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ProfileError(f"{path} is no JSON: {error}") from None
    reader = _Reader()
    profiles = reader.file(content)
    if reader.problems:
        more = len(reader.problems) - _MOST_PROBLEMS
        lines = reader.problems[:_MOST_PROBLEMS] + ([f"and {more} more"] if more > 0 else [])
        raise ProfileError("\n  ".join([f"{path} is no profile file that can be used:", *lines]))
    return profiles


def unfit(profile: EngineProfile, model: str) -> str | None:
    """Why a profile says nothing of an engine that now serves `model`; None if it does.

    A process that was restarted, or moved to another address, is still the same kind of engine: what has
    changed about its pace, the live correction finds.
    """
    if profile.model != model:
        return f"it was measured with model {profile.model!r}, and the fleet serves {model!r}"
    return None


def _to_json(profile: EngineProfile) -> dict[str, Any]:
    content: dict[str, Any] = {
        "url": profile.url,
        "model": profile.model,
        "measured_at": profile.measured_at.astimezone(UTC).isoformat(timespec="seconds"),
        "process_start_time": profile.process_start_time,
    }
    for name in ("prefill", "decode", "handoff"):
        measured = getattr(profile, name)
        if measured is not None:
            content[name] = {
                "fit": asdict(measured.curve),
                "points": [list(point) for point in measured.points],
            }
    return content


class _Reader:
    """Checks what a file holds and collects what is wrong with it."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def problem(self, path: str, seen: object, allowed: str) -> None:
        text = orjson.dumps(seen, default=str).decode()
        shown = text if len(text) <= 40 else text[:40] + "..."
        self.problems.append(f"{path}: {shown}; allowed: {allowed}")

    def file(self, content: object) -> dict[str, EngineProfile]:
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            found = content.get("format") if isinstance(content, dict) else content
            self.problem("format", found, f'"{FORMAT}"')
            return {}
        if content.get("version") != VERSION:
            self.problem(
                "version", content.get("version"), f"{VERSION}; measure again with `narwhal profile`"
            )
            return {}
        engines = content.get("engines")
        if not isinstance(engines, dict):
            self.problem("engines", engines, "an object, by engine ID")
            return {}
        profiles = {}
        for engine, entry in engines.items():
            path = f"engines.{engine}"
            if isinstance(entry, dict):
                profiles[engine] = self.engine(path, entry)
            else:
                self.problem(path, entry, "an object")
        return profiles

    def engine(self, path: str, entry: dict[str, Any]) -> EngineProfile:
        started = entry.get("process_start_time")
        return EngineProfile(
            url=self.text(f"{path}.url", entry.get("url")),
            model=self.text(f"{path}.model", entry.get("model")),
            measured_at=self.instant(f"{path}.measured_at", entry.get("measured_at")),
            process_start_time=None
            if started is None
            else self.number(f"{path}.process_start_time", started),
            prefill=self.measured(path, entry, "prefill", PrefillCurve, TimedLength),
            decode=self.measured(path, entry, "decode", DecodeCurve, TimedBatch),
            handoff=self.measured(path, entry, "handoff", HandoffCurve, TimedLength),
        )

    def measured(
        self, path: str, entry: dict[str, Any], name: str, curve: type[C], point: type[P]
    ) -> Measured[C, P] | None:
        value, path = entry.get(name), f"{path}.{name}"
        if value is None:
            return None
        if not isinstance(value, dict):
            self.problem(path, value, "an object with `fit` and `points`")
            return None
        fit, points = value.get("fit"), value.get("points")
        if not isinstance(fit, dict):
            self.problem(f"{path}.fit", fit, "an object")
            return None
        terms: dict[str, Any] = {}
        for term in fields(curve):
            seen = fit.get(term.name)
            if term.name == "error" and seen is None:
                continue
            terms[term.name] = self.number(f"{path}.fit.{term.name}", seen)
        if not isinstance(points, list):
            self.problem(f"{path}.points", points, "a list")
            return None
        read = [self.point(f"{path}.points[{i}]", value, point) for i, value in enumerate(points)]
        return Measured(curve(**terms), tuple(made for made in read if made is not None))

    def point(self, path: str, value: object, point: type[P]) -> P | None:
        width = len(point._fields)
        if isinstance(value, list) and len(value) == width and all(map(_is_amount, value)):
            return point(*value)
        self.problem(path, value, f"[{', '.join(point._fields)}], numbers of at least 0")
        return None

    def text(self, path: str, value: object) -> str:
        if isinstance(value, str) and value:
            return value
        self.problem(path, value, "a string")
        return ""

    def number(self, path: str, value: object) -> float:
        if _is_amount(value):
            return value
        self.problem(path, value, "a number of at least 0")
        return 0.0

    def instant(self, path: str, value: object) -> datetime:
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                instant = datetime.fromisoformat(value)
                if instant.tzinfo is not None:
                    return instant
        self.problem(path, value, 'a time with its zone, as "2026-01-31T12:00:00+00:00"')
        return datetime.fromtimestamp(0, UTC)


def _is_amount(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
