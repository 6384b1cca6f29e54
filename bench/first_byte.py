"""What an idle router adds to the time to the first byte: `python -m bench.first_byte`.

One client asks again and again, in turn through the router and, for its two legs, straight from the engines,
which answer at once. What the router adds is the one time less the other. The client blocks on plain sockets,
so that its own part, which the direct way has twice, is small.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from bench.compare import Bench
from bench.paced_engine import MODEL

_TOKENS = 8
_BODY = {"model": MODEL, "prompt": "How does a whale sleep?", "max_tokens": _TOKENS, "stream": True}
_WARM_UP = 200


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


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.first_byte", description=__doc__)
    parser.add_argument("--requests", type=int, default=3000, help="each way (default: 3000)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), interval_s=0)
        try:
            router = _Connection(bench.narwhal().url)
            prefill = _Connection(
                bench.prefill, stream=False, max_tokens=1, kv_transfer_params=_handoff(True)
            )
            decode = _Connection(bench.decode, return_token_ids=True, kv_transfer_params=_handoff(False))
            through, direct = [], []
            for _ in range(_WARM_UP + args.requests):
                through.append(router.ask())
                direct.append(prefill.ask() + decode.ask())
            for connection in (router, prefill, decode):
                connection.close()
        finally:
            bench.end()
    print("time to the first byte, µs")
    for name, times in (("through the router", through), ("the two legs alone", direct)):
        times = sorted(times[_WARM_UP:])
        shown = ", ".join(f"p{p} {times[len(times) * p // 100] * 1e6:.0f}" for p in (50, 90, 99))
        print(f"  {name}: {shown}")
    added = statistics.median(through[_WARM_UP:]) - statistics.median(direct[_WARM_UP:])
    print(f"added, median: {added * 1e6:.0f} µs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
