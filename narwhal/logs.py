"""How the process logs: to standard error, as lines for people or as JSON for machines."""

from __future__ import annotations

import logging
import time

import orjson

LEVELS = ("debug", "info", "warning", "error")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        row = {
            "at": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(row).decode()


class _Text(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def formatMessage(self, record: logging.LogRecord) -> str:
        # One record, one line: what a record quotes can't pass for a line of its own, or steer a terminal.
        line = super().formatMessage(record)
        if line.isprintable():
            return line
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def set_up_logging(level: str, style: str) -> None:
    """Log from `level` on; `style` is `text` or `json`."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        _Json() if style == "json" else _Text("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(logging.WARNING)
