"""`narwhal engines|drain|readmit`: ask a running router where its engines stand, and which not to use."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from narwhal.arguments import seconds

_TIMEOUT_S = 10.0
_POLL_S = 0.5
_LONGEST_S = 7 * 86400.0
_NAMES = 20  # of engines that a message repeats
_NEAR = 0.5  # similarity from which a name is proposed: two letters of which one is right


class _Refused(Exception):
    """The router did not do it; the text says why, and `param` which member of the body is to blame."""

    def __init__(self, text: str, param: str = "") -> None:
        super().__init__(text)
        self.param = param


def add_arguments(parser: argparse.ArgumentParser, *, chooses: bool) -> None:
    """The options of all three; with `chooses`, engines are named."""
    if chooses:
        parser.add_argument("engines", nargs="*", metavar="ENGINE", help="IDs as in the fleet file")
        parser.add_argument("--all", action="store_true", help="every engine of the fleet")
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000", help="where the router is (default: %(default)s)"
    )
    parser.add_argument(
        "--token-env", metavar="NAME", help="variable with the token, as in serving.control_token_env"
    )


def add_drain_arguments(parser: argparse.ArgumentParser) -> None:
    """What `drain` takes besides."""
    parser.add_argument(
        "--deadline",
        type=seconds(_LONGEST_S),
        metavar="S",
        help="call them safe to stop after so many seconds, whatever runs (default: never)",
    )
    parser.add_argument("--reason", help="said where people ask why")
    parser.add_argument("--wait", action="store_true", help="end only when they are safe to stop")


def engines(args: argparse.Namespace) -> int:
    """Show where they stand; the exit status."""
    return _tell(lambda: _ask(args, "/narwhal/lifecycle"))


def drain(args: argparse.Namespace) -> int:
    """Drain some; the exit status."""

    def work() -> dict[str, Any]:
        wanted: dict[str, Any] = {"engines": _chosen(args)}
        if args.deadline is not None:
            wanted["deadline_s"] = args.deadline
        if args.reason is not None:
            wanted["reason"] = args.reason
        report = _order(args, "drain", wanted)
        while args.wait and not all(
            engine["safe_to_stop"] for engine in report["engines"] if engine["id"] in wanted["engines"]
        ):
            time.sleep(_POLL_S)
            report = _ask(args, "/narwhal/lifecycle")
        return report

    return _tell(work)


def readmit(args: argparse.Namespace) -> int:
    """Take some back; the exit status."""
    return _tell(lambda: _order(args, "readmit", {"engines": _chosen(args)}))


def _chosen(args: argparse.Namespace) -> list[str]:
    if args.all:
        return [engine["id"] for engine in _ask(args, "/narwhal/lifecycle")["engines"]]
    if not args.engines:
        raise _Refused("name at least one engine, or give --all")
    return list(args.engines)


def _order(args: argparse.Namespace, what: str, wanted: dict[str, Any]) -> dict[str, Any]:
    try:
        return _ask(args, f"/narwhal/lifecycle/{what}", wanted)
    except _Refused as refused:
        if not refused.param.startswith("engines["):
            raise
        # The router's words are about a request's body, which whoever typed a name has not seen.
        known = [engine["id"] for engine in _ask(args, "/narwhal/lifecycle")["engines"]]
        unknown = [_described(name, known) for name in wanted["engines"] if name not in known]
        if not unknown:
            raise
    raise _Refused(
        f"the router has no engine {' or '.join(unknown)}; nothing was changed. It has {_listed(known)}"
    )


def _described(name: str, known: Sequence[str]) -> str:
    def likeness(other: str) -> tuple[float, bool]:
        one, two = name.casefold(), other.casefold()
        return difflib.SequenceMatcher(None, one, two).ratio(), one[:1] == two[:1]

    near = max(known, key=likeness, default="")
    return f'"{name}"' + (f" (did you mean {near}?)" if near and likeness(near)[0] >= _NEAR else "")


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {more} more" if more > 0 else "")


def _ask(args: argparse.Namespace, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    headers = {"content-type": "application/json"}
    if args.token_env:
        token = os.environ.get(args.token_env)
        if not token:
            raise _Refused(f"the variable {args.token_env} (--token-env) is not set")
        headers["authorization"] = f"Bearer {token}"
    url = args.url.rstrip("/") + path
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, data, headers)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
            report: dict[str, Any] = json.load(reply)
            return report
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(error) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise _Refused(f"no answer from {url}: {reason}; is it a router's address (--url)?") from None


def _refused(error: urllib.error.HTTPError) -> _Refused:
    try:
        told = json.load(error)["error"]
        return _Refused(str(told["message"]), told["param"] or "")
    except (ValueError, KeyError, TypeError):
        return _Refused(f"{error.url} answered {error.code}, as no router does (--url)")


def _tell(work: Callable[[], dict[str, Any]]) -> int:
    try:
        report = work()
    except _Refused as refused:
        print(f"narwhal: {refused}", file=sys.stderr)
        return 1
    console = Console(highlight=False)
    rows = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for heading in ("engine", "role", "state", "for", "running", "safe to stop", "why"):
        rows.add_column(
            heading, overflow="fold", justify="right" if heading in ("for", "running") else "left"
        )
    for engine in report["engines"]:
        rows.add_row(
            engine["id"],
            engine["role"],
            engine["state"],
            f"{engine['for_s']:.0f} s",
            str(engine["running"]),
            "yes" if engine["safe_to_stop"] else "no",
            engine["drain_reason"] or engine["reason"] or "",
        )
    console.print(rows)
    console.print(f"\nThe router is {report['status']}.", markup=False)
    for role, others in report.get("stand_ins", {}).items():
        serve = "serves" if len(others) == 1 else "serve"
        console.print(
            f"No {role} engine is in service: {_listed(others)} {serve} whole requests until one is back.",
            markup=False,
        )
    if "warning" in report:
        console.print(f"Take care: {report['warning']}", markup=False)
    return 0
