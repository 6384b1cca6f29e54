"""Plots as inline SVG: drawn here, styled by the page, in need of nothing else.

Colours are the page's (classes s0, s1 ... for series, and those of outcomes), so that they follow its light
or dark theme. What is under the pointer is told by `<title>` elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from narwhal.harness.figures import duration, number
from narwhal.harness.measures import percentile
from narwhal.harness.sample import Outcome, Sample
from narwhal.harness.scales import Label, Scale, fitting, from_zero

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 14, 44
MOST_DOTS = 1500
SERIES = 8  # colours there are


@dataclass(slots=True)
class Canvas:
    """One plot: what is drawn so far, between its axes."""

    title: str
    x: Scale
    y: Scale
    x_name: str
    y_name: str
    x_label: Label = number
    y_label: Label = number
    parts: list[str] = field(default_factory=list)
    legend: list[tuple[str, str]] = field(default_factory=list)  # class and text

    def line(self, points: Sequence[tuple[float, float]], of: str, *, tip: str = "") -> None:
        """A line through values."""
        if points:
            path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
            self.parts.append(f'<polyline class="line {of}" points="{path}">{_tip(tip)}</polyline>')

    def dot(self, x: float, y: float, of: str, *, size: float = 2.2, tip: str = "") -> None:
        """A dot."""
        place = f'cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{size}"'
        self.parts.append(f'<circle class="dot {of}" {place}>{_tip(tip)}</circle>')

    def bar(self, left: float, right: float, low: float, high: float, of: str, *, tip: str = "") -> None:
        """A bar, a hair apart from the next."""
        x, y = self.x(left), self.y(high)
        width, height = max(0.8, self.x(right) - x - 0.8), self.y(low) - y
        if height > 0:
            self.parts.append(
                f'<rect class="bar {of}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">'
                f"{_tip(tip)}</rect>"
            )

    def upright(self, x: float, of: str, text: str = "", *, row: int = 0) -> None:
        """A line from bottom to top, with a text at its top."""
        if not self.x.low <= x <= self.x.high:
            return
        at = self.x(x)
        self.parts.append(_line(f"mark {of}", at, at, TOP, HEIGHT - BOTTOM))
        side, shift = ("end", -4.0) if at > WIDTH - 110 else ("start", 4.0)
        self._note(text, of, at + shift, TOP + 10 + 13 * row, side)

    def across(self, y: float, of: str, text: str) -> None:
        """A line from left to right, with a text at its end."""
        if self.y.low <= y <= self.y.high:
            at = self.y(y)
            self.parts.append(_line(f"mark {of}", LEFT, WIDTH - RIGHT, at, at))
            self._note(text, of, WIDTH - RIGHT - 3, at - 4, "end")

    def _note(self, text: str, of: str, x: float, y: float, side: str) -> None:
        if text:
            self.parts.append(_text(text, f"note {of}", x, y, side))

    def figure(self, caption: str = "") -> str:
        """The whole, as a figure element."""
        legend = "".join(f'<span><i class="{of}"></i>{escape(text)}</span>' for of, text in self.legend)
        return (
            f"<figure><h3>{escape(self.title)}</h3>"
            + (f'<div class="legend">{legend}</div>' if legend else "")
            + f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title, quote=True)}">'
            + "".join(self._axes())
            + "".join(self.parts)
            + "</svg>"
            + (f"<figcaption>{escape(caption)}</figcaption>" if caption else "")
            + "</figure>"
        )

    def _axes(self) -> Iterator[str]:
        bottom, right, middle = HEIGHT - BOTTOM, WIDTH - RIGHT, (LEFT + WIDTH - RIGHT) / 2
        for tick in self.y.ticks():
            at = self.y(tick)
            yield _line("grid", LEFT, right, at, at)
            yield _text(self.y_label(tick), "tick", LEFT - 7, at + 4, "end")
        for tick in self.x.ticks():
            at = self.x(tick)
            yield _line("grid", at, at, bottom, bottom + 4)
            yield _text(self.x_label(tick), "tick", at, bottom + 17, "middle")
        yield _line("axis", LEFT, right, bottom, bottom)
        yield _text(self.x_name, "name", middle, HEIGHT - 6, "middle")
        yield f'<g transform="translate(13 {(TOP + bottom) / 2}) rotate(-90)">'
        yield _text(self.y_name, "name", 0, 0, "middle") + "</g>"


def _line(of: str, x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="{of}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def _text(text: str, of: str, x: float, y: float, side: str) -> str:
    return f'<text class="{of}" x="{x:.1f}" y="{y:.1f}" text-anchor="{side}">{escape(text)}</text>'


def _tip(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


def distribution(
    title: str, series: Sequence[tuple[str, Sequence[float]]], target: float | None
) -> str | None:
    """How values are distributed: one series as a histogram, several as cumulated shares; None without any.

    Each series has a label and its values; `target` is marked.
    """
    ordered = [(label, sorted(values)) for label, values in series]
    ordered = [(label, values) for label, values in ordered if values]
    if not ordered:
        return None
    everything = sorted(value for _, values in ordered for value in values)
    if target is not None and everything[-1] < target < everything[-1] * 3:
        everything.append(target)
    x = fitting(everything, LEFT, WIDTH - RIGHT)
    if len(ordered) == 1:
        return _histogram(title, ordered[0][1], x, target)
    canvas = Canvas(title, x, Scale(0, 1, HEIGHT - BOTTOM, TOP), "", "share of requests", duration, _percent)
    for index, (label, values) in enumerate(ordered):
        steps = [i / 200 for i in range(200)] + [0.995, 0.999, 1.0]
        points = [(percentile(values, 100 * step), step) for step in steps]
        canvas.line(points, f"s{index % SERIES}", tip=f"{label}: p50 {duration(percentile(values, 50))}")
        canvas.legend.append((f"s{index % SERIES}", label))
    if target is not None:
        canvas.upright(target, "target", f"target {duration(target)}", row=17)
    return canvas.figure()


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _histogram(title: str, values: Sequence[float], x: Scale, target: float | None) -> str:
    bins = 48
    counts = [0] * bins
    edges = [x.back(index / bins) for index in range(bins + 1)]
    index = 0
    for value in values:
        while index < bins - 1 and value >= edges[index + 1]:
            index += 1
        counts[index] += 1
    y = from_zero(counts, HEIGHT - BOTTOM, TOP)
    canvas = Canvas(title, x, y, "", "count", duration)
    for index, count in enumerate(counts):
        low, high = edges[index], edges[index + 1]
        canvas.bar(low, high, 0, count, "s0", tip=f"{duration(low)} to {duration(high)}: {count:,}")
    row = 0
    for percent in (50, 99):
        value = percentile(values, percent)
        canvas.upright(value, "quantile", f"p{percent} {duration(value)}", row=row)
        row += 1
    if target is not None:
        canvas.upright(target, "target", f"target {duration(target)}", row=row)
    return canvas.figure()


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a run's time: one round."""

    start_s: float
    end_s: float
    label: str


def over_time(
    title: str,
    samples: Sequence[Sample],
    value_of: Callable[[Sample], float | None],
    stretches: Sequence[Stretch],
    target: float | None,
) -> str | None:
    """One latency of each request, by when it was due, with its median and 99th percentile along the way."""
    values = [
        (sample.due_s, value, sample)
        for sample in samples
        if sample.outcome is Outcome.SERVED and (value := value_of(sample)) is not None
    ]
    if not values:
        return None
    values.sort(key=lambda entry: entry[0])
    ordered = sorted(value for _, value, _ in values)
    y = fitting(ordered, HEIGHT - BOTTOM, TOP)
    canvas = Canvas(title, _times(samples, stretches), y, "seconds since the start", "", number, duration)
    _mark_stretches(canvas, stretches)
    for due, value, sample in _thinned(values):
        of = "late" if sample.good is False else "s0"
        canvas.dot(due, value, of, tip=f"request {sample.number}: {duration(value)}")
    canvas.legend.append(("s0", "a request"))
    if any(sample.good is False for _, _, sample in values):
        canvas.legend.append(("late", "one that missed a target"))
    parts = list(_parts([(due, value) for due, value, _ in values], stretches))
    for percent, of in ((50, "median"), (99, "tail")):
        for part in parts:
            canvas.line([(at, percentile(sorted(inside), percent)) for at, inside in part], of)
        canvas.legend.append((of, f"p{percent}"))
    if target is not None:
        canvas.across(target, "target", f"target {duration(target)}")
    note = f"{MOST_DOTS:,} of {len(values):,} requests are drawn, the slowest of each moment among them."
    return canvas.figure(note if len(values) > MOST_DOTS else "")


def _times(samples: Sequence[Sample], stretches: Sequence[Stretch]) -> Scale:
    end = max([sample.due_s for sample in samples] + [stretch.end_s for stretch in stretches])
    return Scale(0.0, max(end, 1e-3), LEFT, WIDTH - RIGHT)


def _mark_stretches(canvas: Canvas, stretches: Sequence[Stretch]) -> None:
    label = ""
    for stretch in stretches:
        text = stretch.label if stretch.label != label and len(stretches) > 1 else ""
        label = stretch.label
        canvas.upright(stretch.start_s, "round", text)


def _thinned(values: list[tuple[float, float, Sample]]) -> Iterator[tuple[float, float, Sample]]:
    """No more than MOST_DOTS of them: the largest of each moment, and of the others every so manieth."""
    if len(values) <= MOST_DOTS:
        yield from values
        return
    size = len(values) / (MOST_DOTS / 2)
    for index in range(MOST_DOTS // 2):
        part = values[int(index * size) : int((index + 1) * size)]
        largest = max(part, key=lambda entry: entry[1])
        yield largest
        if part[0] is not largest:
            yield part[0]


def _parts(
    values: list[tuple[float, float]], stretches: Sequence[Stretch]
) -> Iterator[list[tuple[float, list[float]]]]:
    """Each stretch's values in pieces of equal time, of some 20 values or more on average."""
    for stretch in stretches:
        inside = [entry for entry in values if stretch.start_s <= entry[0] < stretch.end_s]
        pieces = max(1, min(60 // len(stretches) + 1, len(inside) // 20))
        length = (stretch.end_s - stretch.start_s) / pieces
        lists: list[list[float]] = [[] for _ in range(pieces)]
        for at, value in inside:
            lists[min(pieces - 1, int((at - stretch.start_s) / length))].append(value)
        yield [(stretch.start_s + (i + 0.5) * length, values) for i, values in enumerate(lists) if values]


OUTCOMES = (
    ("good", "served in time"),
    ("late", "served late"),
    ("refused", "refused"),
    ("failed", "failed"),
)


def outcomes_over_time(samples: Sequence[Sample], stretches: Sequence[Stretch]) -> str | None:
    """How the requests due at each time ended, in requests per second."""
    if not samples:
        return None
    x = _times(samples, stretches)
    bins = 64
    length = x.high / bins
    counts = {name: [0] * bins for name, _ in OUTCOMES}
    for sample in samples:
        name = _outcome(sample)
        if name is not None:
            counts[name][min(bins - 1, max(0, int(sample.due_s / length)))] += 1
    totals = [sum(counts[name][index] for name in counts) / length for index in range(bins)]
    y = from_zero(totals, HEIGHT - BOTTOM, TOP)
    canvas = Canvas("How requests ended, over time", x, y, "seconds since the start", "requests per second")
    judged = any(sample.good is not None for sample in samples)
    for name, text in OUTCOMES:
        if any(counts[name]):
            canvas.legend.append((name, text if judged or name != "good" else "served"))
    for index in range(bins):
        low = 0.0
        for name, text in OUTCOMES:
            high = low + counts[name][index] / length
            tip = f"{index * length:.1f} s: {counts[name][index]} {text}"
            canvas.bar(index * length, (index + 1) * length, low, high, name, tip=tip)
            low = high
    _mark_stretches(canvas, stretches)
    return canvas.figure()


def _outcome(sample: Sample) -> str | None:
    if sample.outcome is Outcome.SERVED:
        return "late" if sample.good is False else "good"
    return None if sample.outcome is Outcome.UNFINISHED else str(sample.outcome)


@dataclass(frozen=True, slots=True)
class At:
    """What a sweep found at one rate, per second; the bounds are those of the 95 % interval."""

    offered: float
    value: float
    bounds: tuple[float, float] | None = None


def against_rate(
    served: Sequence[At], good: Sequence[At], knee: float | None, name: str = "requests per second"
) -> str | None:
    """Goodput, and all that was served, against the offered rate; None for fewer than two rates."""
    if len(served) < 2:
        return None
    most = [at.offered for at in served]
    x, y = from_zero(most, LEFT, WIDTH - RIGHT), from_zero(most, HEIGHT - BOTTOM, TOP)
    canvas = Canvas(
        "Goodput against rate" if good else "Answers against rate", x, y, f"offered, {name}", name
    )
    canvas.line([(0, 0), (x.high, x.high)], "ideal")
    canvas.legend.append(("ideal", "as offered"))
    for of, text, ats in (("s1", "served", served), ("good", "goodput", good)):
        if ats:
            canvas.line([(at.offered, at.value) for at in ats], of)
            canvas.legend.append((of, text))
        for at in ats:
            if at.bounds is not None:
                canvas.line([(at.offered, max(0.0, at.bounds[0])), (at.offered, at.bounds[1])], of)
            canvas.dot(
                at.offered, at.value, of, size=3.5, tip=f"{number(at.offered)}/s: {number(at.value)}/s {text}"
            )
    if knee is not None:
        canvas.upright(knee, "target", f"knee {number(knee)}/s")
    return canvas.figure()
