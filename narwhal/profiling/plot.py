"""The curves and the points they were fitted to, drawn. Needs matplotlib, which the rest does without."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from narwhal.profiles.store import EngineProfile

_STEPS = 100


def is_possible() -> bool:
    """Whether matplotlib is there."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(profiles: Mapping[str, EngineProfile], path: Path) -> None:
    """Write a picture; the format goes by the file's ending. Raises OSError or ValueError."""
    importlib.import_module("matplotlib").use("agg")
    pyplot = importlib.import_module("matplotlib.pyplot")

    figure, axes = pyplot.subplots(1, 3, figsize=(18, 5.5), layout="constrained")
    try:
        titles = (
            ("Prefill of one prompt", "prompt tokens", "seconds"),
            ("Handoff and first token", "prompt tokens", "seconds"),
            ("Token interval", "running sequences", "milliseconds"),
        )
        for axis, (title, across, up) in zip(axes, titles, strict=True):
            axis.set(title=title, xlabel=across, ylabel=up)
            axis.grid(visible=True, alpha=0.3)
        for number, (name, profile) in enumerate(profiles.items()):
            colour = f"C{number % 10}"
            for axis, measured in ((axes[0], profile.prefill), (axes[1], profile.handoff)):
                if measured is not None:
                    _by_length(axis, measured, name, colour)
            if profile.decode is not None:
                _by_batch(axes[2], profile.decode, name, colour)
        for axis in axes:
            if axis.has_data():
                axis.set_ylim(bottom=0)
                axis.legend(fontsize="small")
        figure.savefig(path, dpi=120)
    finally:
        pyplot.close(figure)


def _by_length(axis: Any, measured: Any, name: str, colour: str) -> None:
    curve, points = measured.curve, measured.points
    axis.plot(
        [point.tokens for point in points], [point.seconds for point in points], "o", color=colour, ms=4
    )
    at = [curve.lo + (curve.hi - curve.lo) * i / _STEPS for i in range(_STEPS + 1)]
    axis.plot(at, [curve.price(tokens) for tokens in at], color=colour, label=_label(name, curve.error))


def _by_batch(axis: Any, measured: Any, name: str, colour: str) -> None:
    """One line for each prompt length: points of a like number of KV tokens a sequence."""
    curve = measured.curve
    lines: dict[int, list[Any]] = {}
    for point in measured.points:
        lines.setdefault(round(point.kv_tokens / point.running / 64), []).append(point)
    label: str | None = _label(name, curve.error)
    for points in lines.values():
        running = [point.running for point in points]
        axis.plot(running, [1000 * point.seconds for point in points], "o", color=colour, ms=4)
        prices = [1000 * curve.price(point.running, point.kv_tokens) for point in points]
        axis.plot(running, prices, color=colour, label=label)
        label = None


def _label(name: str, error: float | None) -> str:
    return name if error is None else f"{name} (error {error:.1%})"
