"""How a measurement goes, on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from rich.console import Console


class Display:
    """A bar with the time left; notes above it."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("looking at the engines", total=None)

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def plan(self, units: float) -> None:
        """All there is to do."""
        self._progress.update(self._task, total=units)

    def begin(self, what: str) -> None:
        """What is measured now."""
        self._progress.update(self._task, description=what)

    def advance(self, units: float) -> None:
        """So much is done."""
        self._progress.advance(self._task, units)

    def note(self, text: str) -> None:
        """Something a person should know."""
        self._progress.console.print(text, markup=False, highlight=False)
