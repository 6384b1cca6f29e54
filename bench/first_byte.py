"""What an idle router adds to the time to the first byte of both legs: `python -m bench.first_byte`.

One client asks a few times through the router and then as often, for the two legs, straight from the engines,
which answer at once; and so on. What the router adds is the one time less the other. In the first row each
request follows the answer to the one before; in the second the client waits before it asks, so that the
router has gone to sleep. HAProxy, if it is installed, shows what moving the bytes of one leg adds here. The
client blocks on plain sockets, so that its own part, which the direct way has twice, is small.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.compare import Bench, Failed, Router, up
from bench.paced_engine import MODEL

_TOKENS = 8
_BODY = {"model": MODEL, "prompt": "How does a whale sleep?", "max_tokens": _TOKENS, "stream": True}
_BLOCK = 20  # requests one way before the other has its turn
_WARM_UP = 10  # blocks
_PAUSE_S = 0.005


class _Connection:
    """One that is kept."""

    def __init__(self, url: str, **members: object) -> None:
        where = urlsplit(url)
        assert where.hostname is not None
        assert where.port is not None
        self._socket = socket.create_connection((where.hostname, where.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = json.dumps(_BODY | members).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: application/json\r\n"
        self._request = head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body)
        self._end = b"0\r\n\r\n" if (_BODY | members)["stream"] else b"}"

    def ask(self) -> float:
        """Seconds from sending a request to the first byte of its answer."""
        began = time.perf_counter()
        self._socket.sendall(self._request)
        answer = self._socket.recv(1 << 16)
        took = time.perf_counter() - began
        if b" 200 " not in answer[:16]:
            raise SystemExit(f"bench.first_byte: it answered {answer!r}")
        while not answer.endswith(self._end):
            answer += self._socket.recv(1 << 16)
        return took

    def close(self) -> None:
        self._socket.close()


def _handoff(to_prefill: bool) -> dict[str, object]:
    return {"do_remote_decode": to_prefill, "do_remote_prefill": not to_prefill}


def _haproxy(bench: Bench) -> Router | None:
    """HAProxy, if it is installed and works."""
    try:
        router = bench.haproxy()
        uvloop.run(up(router))
    except (LookupError, Failed):
        return None
    return router


def _block(ask: Callable[[], float], pause_s: float) -> list[float]:
    """The times of a block, but for the first, which finds nothing in the processor's caches."""
    times = []
    for _ in range(_BLOCK + 1):
        time.sleep(pause_s)
        times.append(ask())
    return times[1:]


def _row(name: str, times: list[float], direct: list[float]) -> list[str]:
    times, direct = sorted(times), sorted(direct)
    points = [f"{times[len(times) * share // 100] * 1e6:.0f}" for share in (50, 90, 99)]
    alone, added = statistics.median(direct), statistics.median(times) - statistics.median(direct)
    return [name, *points, f"{alone * 1e6:.0f}", f"{added * 1e6:.0f}"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.first_byte", description=__doc__)
    parser.add_argument("--requests", type=int, default=3000, help="each way (default: 3000)")
    args = parser.parse_args()
    table = Table(title="time to the first byte, µs", box=SIMPLE_HEAD, title_justify="left")
    for title in ("", "p50", "p90", "p99", "without it", "added"):
        table.add_column(title, justify="right" if title else "left")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), interval_s=0)
        try:
            router = _Connection(bench.narwhal().url)
            prefill = _Connection(
                bench.prefill, stream=False, max_tokens=1, kv_transfer_params=_handoff(True)
            )
            one_leg = {"return_token_ids": True, "kv_transfer_params": _handoff(False)}
            decode = _Connection(bench.decode, **one_leg)
            ways = [("Narwhal, two legs", router.ask, lambda: prefill.ask() + decode.ask())]
            if (haproxy := _haproxy(bench)) is not None:
                ways.append(("HAProxy, one leg", _Connection(haproxy.url, **one_leg).ask, decode.ask))
            for name, through, direct in ways:
                for pause_s in (0.0, _PAUSE_S):
                    seen: tuple[list[float], list[float]] = ([], [])
                    for block in range(_WARM_UP + args.requests // _BLOCK):
                        for times, ask in zip(seen, (through, direct), strict=True):
                            found = _block(ask, pause_s)
                            if block >= _WARM_UP:
                                times += found
                    after = f", {_PAUSE_S * 1000:g} ms after the last" if pause_s else ", again and again"
                    table.add_row(*_row(name + after, *seen))
        finally:
            bench.end()
    Console(width=100).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
