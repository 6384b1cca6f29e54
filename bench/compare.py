"""What routers cost, side by side in one run: `make bench-compare`.

Two stand-in engines, one for prefill and one for decode, answer at a known pace. The routers, each on the
first core, are measured in turn by the project's own load generator, which shares the other core with the
engines; each case is gone through several times, and medians are shown. CPU is all that the router's
processes used, by the kernel's count. HAProxy and nginx pass one leg straight on, to the decode engine, which
shows what moving the bytes costs. They, `vllm-router` and narwhal-inference (its `narwhal-profile` and
`narwhal-serve`) are taken in if they are on the PATH; one that does not work is left out, with what it said.
Any other router is started by hand before the engines, whose addresses `--engines` fixes, and named with
`--peer`:

    python -m bench.compare --engines 8101,8100 --peer other=http://127.0.0.1:9000,PID
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.paced_engine import MODEL
from narwhal.harness.endpoint import CHAT, Access, Endpoint, read_url
from narwhal.harness.generator import Asking
from narwhal.harness.lengths import read_lengths
from narwhal.harness.load import Load, Point
from narwhal.harness.measures import percentile
from narwhal.harness.prompts import MadeUp
from narwhal.harness.run import Runner
from narwhal.harness.sample import Outcome, Sample

INTERVAL_S = 0.02
_BYTES_PER_WORD = 5.1  # of a made-up prompt, the space included
_START_S = 20.0
_PROFILING_S = 120.0
_FEW = 64  # streams: the most that any case but the first has
# Up to the longest prompts of the cases, so that nothing is read off beyond what was measured.
_PROFILE = (
    "--overwrite", "--prefill-lens", "1000,100000,220000", "--decode-input-lens", "64,128",
    "--decode-tokens", "64",
)  # fmt: skip
_NARWHAL = """
model: {model}
slo: {{ttft_s: 30, tpot_s: 1}}
serving:
  {{retention_limit: 20000, queue_capacity: 20000, prefill_concurrency: 4096, decode_concurrency: 20000}}
engines:
  - {{id: p0, url: "{prefill}", role: prefill}}
"""
_HAPROXY = """
global
  nbthread 1
  maxconn 9000
defaults
  mode http
  option http-no-delay
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend clients
  bind 127.0.0.1:{port}
  default_backend engines
backend engines
  server decode {decode}
"""
_NGINX = """
worker_processes 1; pid {folder}/nginx.pid; error_log /dev/null; daemon off;
events {{ worker_connections 9000; }}
http {{
  access_log off; client_max_body_size 8m; client_body_temp_path {folder}; proxy_temp_path {folder};
  upstream decode {{ server {decode}; keepalive 2048; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://decode; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


_NEEDED = ("no router", "narwhal")  # what every other is set beside


class Case(NamedTuple):
    """One kind of work."""

    title: str
    unit: str  # what CPU is counted for
    clients: int
    tokens: int
    body_bytes: int


class Router(NamedTuple):
    """What is measured."""

    name: str
    url: str
    pids: tuple[int, ...]  # empty: nobody's CPU is counted
    child: subprocess.Popen[str] | None = None  # its process, if it is one of ours
    log: Path | None = None  # what it says


class Figures(NamedTuple):
    """What one round of a case showed. Seconds."""

    cpu: float
    ttft: float
    gap_p50: float
    gap_p99: float
    failed: int


class Failed(Exception):
    """A router that does not work; the text says how."""


def cpu_s(pids: Sequence[int]) -> float:
    """Seconds of CPU that processes have used so far, with those children of theirs that live."""
    total = 0.0
    for pid in pids:
        # The clock of another process: the kernel's CPUCLOCK_SCHED of its ID, see clock_getcpuclockid(3).
        try:
            total += time.clock_gettime((~pid << 3) | 2)
            listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            raise Failed(f"process {pid} is gone") from None
        total += cpu_s([int(child) for child in listed])
    return total


class Bench:
    """Engines and routers, for as long as the block lasts."""

    def __init__(
        self,
        folder: Path,
        engines: tuple[int, int] = (0, 0),
        interval_s: float = INTERVAL_S,
        *,
        event_bytes: int = 0,
        decoders: int = 1,
    ) -> None:
        """`engines` are the ports of the two, 0 for any; `interval_s` is their pace, `event_bytes` the size
        of their events, 0 for a short word each. `decoders` is how many decode engines there are, all in one
        process.
        """
        self._folder = folder
        self._engine_arguments = (str(interval_s), str(event_bytes))
        self._children: list[subprocess.Popen[str]] = []
        self._cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {self._cores[-1]})
        (self.prefill,) = self._engine(engines[0], 1)
        self._decoders = self._engine(engines[1], decoders)
        self.decode = self._decoders[0]

    @contextmanager
    def _on_core(self, core: int) -> Iterator[None]:
        # Children take this process's core with them.
        os.sched_setaffinity(0, {core})
        try:
            yield
        finally:
            os.sched_setaffinity(0, {self._cores[-1]})

    def _start(
        self,
        command: Sequence[str],
        core: int,
        *,
        out: IO[str] | int = subprocess.PIPE,
        errors: int = subprocess.DEVNULL,
        env: Mapping[str, str] = os.environ,
        folder: Path | None = None,
    ) -> subprocess.Popen[str]:
        with self._on_core(core):
            child = subprocess.Popen(command, stdout=out, stderr=errors, text=True, env=env, cwd=folder)
        self._children.append(child)
        return child

    def _engine(self, port: int, count: int) -> list[str]:
        interval_s, event_bytes = self._engine_arguments
        arguments = [interval_s, str(port), event_bytes, str(count)]
        child = self._start([sys.executable, "-m", "bench.paced_engine", *arguments], self._cores[-1])
        assert child.stdout is not None
        urls = child.stdout.readline().split()
        if not urls:
            raise SystemExit(f"bench.compare: no engine could be started on port {port} (--engines)")
        return urls

    def narwhal(self) -> Router:
        """The router."""
        fleet = self._folder / "fleet.yaml"
        decoders = "".join(
            f'  - {{id: d{number}, url: "{url}", role: decode}}\n'
            for number, url in enumerate(self._decoders)
        )
        fleet.write_text(_NARWHAL.format(model=MODEL, prefill=self.prefill) + decoders)
        command = [sys.executable, "-m", "narwhal", "serve", "--fleet", str(fleet), "--port", "0"]
        child = self._start([*command, "--log-level", "warning"], self._cores[0])
        assert child.stdout is not None
        line = child.stdout.readline().split()
        return Router("narwhal", next(word for word in line if word.startswith("http")), (child.pid,))

    def haproxy(self) -> Router:
        """HAProxy before the decode engine."""
        return self._proxy("haproxy", _HAPROXY, lambda file: ["-f", file, "-db"])

    def nginx(self) -> Router:
        """nginx before the decode engine."""
        return self._proxy("nginx", _NGINX, lambda file: ["-c", file])

    def _proxy(self, name: str, configuration: str, arguments: Callable[[str], list[str]]) -> Router:
        port, file = _free_port(), self._folder / f"{name}.conf"
        decode = self.decode.removeprefix("http://")
        file.write_text(configuration.format(port=port, decode=decode, folder=self._folder))
        return self._on(name, port, [_path(name), *arguments(str(file))])

    def vllm_router(self) -> Router:
        """vLLM's router, in its mode for split requests."""
        port = _free_port()
        command = [_path("vllm-router"), "--host", "127.0.0.1", "--port", str(port)]
        command += ["--vllm-pd-disaggregation", "--prefill", self.prefill, "--decode", self.decode]
        command += ["--policy", "round_robin", "--prometheus-port", str(_free_port()), "--log-level", "error"]
        return self._on("vllm-router", port, command)

    def narwhal_inference(self, streams: int) -> Router:
        """narwhal-inference, which wants its engines profiled first. Raises Failed if it can't do that.

        It gives an engine no more streams than were open then, up to what its profiler can bear.
        """
        serve, profile = _path("narwhal-serve"), _path("narwhal-profile")
        fleet = self._folder / "fleet.json"
        engines = [
            {"iid": iid, "url": url, "role": role, "pin": True}
            for iid, url, role in (("p0", self.prefill, "prefill"), ("d0", self.decode, "decode"))
        ]
        slo, profiles = {"ttft_s": 30, "tpot_s": 1}, {"path": str(self._folder / "profiles.json")}
        head = {"schema": "narwhal.fleet", "schema_version": 2, "model": MODEL}
        fleet.write_text(json.dumps({**head, "engines": engines, "slo": slo, "profiles": profiles}))
        # Its package has this one's name, and must not find this one.
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [profile, "--fleet", str(fleet), *_PROFILE]
        streams = max(streams, _FEW)
        for most in (streams, streams, _FEW):  # it rejects its own figures where they scatter
            try:
                with self._on_core(self._cores[0]):
                    done = subprocess.run(
                        [*command, "--decode-concurrency", f"1,{most}"], stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, cwd=self._folder,
                        env=env, timeout=_PROFILING_S, check=False,
                    )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise Failed(f"narwhal-profile took more than {_PROFILING_S:g} s") from None
            if done.returncode == 0:
                break
        else:
            raise Failed(f"narwhal-profile ended with status {done.returncode}{_last_words(done.stdout)}")
        port = _free_port()
        command = [serve, "--fleet", str(fleet), "--port", str(port), "--log-level", "error"]
        return self._on("narwhal-inference", port, command, env)

    def _on(
        self, name: str, port: int, command: Sequence[str], env: Mapping[str, str] = os.environ
    ) -> Router:
        log = self._folder / f"{name}.log"
        with log.open("w") as file:
            child = self._start(
                command, self._cores[0], out=file, errors=subprocess.STDOUT, env=env, folder=self._folder
            )
        return Router(name, f"http://127.0.0.1:{port}", (child.pid,), child, log)

    def end(self) -> None:
        """Stop all."""
        for child in self._children:
            child.terminate()
        for child in self._children:
            try:
                child.wait(_START_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()


def _path(name: str) -> str:
    # Servers are often where only root's PATH leads.
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise LookupError(name)
    return found


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _last_words(text: str) -> str:
    # Two lines: the last one alone is often that it ends now.
    lines = [line.strip() for line in text.splitlines() if line.strip()][-2:]
    return f": {'; '.join(lines)}" if lines else " and said nothing"


async def up(router: Router) -> None:
    """Wait until it answers a request. Raises Failed if it doesn't."""
    began = time.monotonic()
    while time.monotonic() - began < _START_S:
        figures = await measure(router, Case("", "request", 1, 1, 100), 0.0, 1, timeout_s=_START_S / 2)
        if not figures.failed:
            return
        if router.child is not None and (status := router.child.poll()) is not None:
            said = "" if router.log is None else _last_words(router.log.read_text(errors="replace"))
            raise Failed(f"it ended with status {status}{said}")
        await asyncio.sleep(0.2)
    raise Failed(f"it answers no request at {router.url}")


async def measure(
    router: Router, case: Case, seconds: float, requests: int | None = None, timeout_s: float = 60.0
) -> Figures:
    """What a case shows in so many seconds, or with so many requests. Raises Failed if it is gone."""
    samples: list[Sample] = []
    endpoint = Endpoint(Access(read_url(router.url)), timeout_s=timeout_s)
    try:
        words = max(1, round(case.body_bytes / _BYTES_PER_WORD))
        load = Load(
            (Point(concurrency=case.clients),), MadeUp(chat=True, vocabulary=None, seed=0),
            read_lengths(str(words)), read_lengths(str(case.tokens)), rounds=1,
            duration_s=None if requests else seconds, requests=requests, warmup_s=0.0,
        )  # fmt: skip
        asking = Asking(CHAT, MODEL, run_id="c")
        before = cpu_s(router.pids)
        await Runner(endpoint, load, asking, on_sample=samples.append).carry_out()
        used = cpu_s(router.pids) - before
    finally:
        await endpoint.close()
    served = [sample for sample in samples if sample.outcome is Outcome.SERVED]
    gaps = sorted(gap for sample in served for gap in sample.gaps)
    ttfts = sorted(sample.ttft_s for sample in served if sample.ttft_s is not None)
    items = len(served) + len(gaps) if case.unit == "event" else len(served)
    return Figures(
        used / items if items else float("nan"),
        percentile(ttfts, 50) if ttfts else float("nan"),
        percentile(gaps, 50) if gaps else float("nan"),
        percentile(gaps, 99) if gaps else float("nan"),
        len(samples) - len(served),
    )


async def _measure(routers: Sequence[Router], args: argparse.Namespace, console: Console) -> None:
    working = []
    for router in routers:
        try:
            await up(router)
        except Failed as failed:
            _leave_out(console, router.name, failed)
        else:
            working.append(router)
    cases = [
        Case(f"{args.streams} streams, {INTERVAL_S * 1000:g} ms apart", "event", args.streams, 100, 200),
        Case("64 at once, 1 token", "request", 64, 1, 200),
        Case("16 at once, 1 token, 256 KiB body", "request", 16, 1, 1 << 18),
        Case("16 at once, 1 token, 1 MiB body", "request", 16, 1, 1 << 20),
    ]
    for case in cases:
        seen: dict[str, list[Figures]] = {router.name: [] for router in working}
        for number in range(args.rounds):
            for router in list(working):
                console.print(f"{case.title}: round {number + 1} of {args.rounds}, {router.name}", end="\r")
                try:
                    seen[router.name].append(await measure(router, case, args.seconds))
                except Failed as failed:
                    _leave_out(console, router.name, failed)
                    working.remove(router)
                    del seen[router.name]
        console.print(_table(case, seen), "")


def _leave_out(console: Console, name: str, failed: Failed) -> None:
    if name in _NEEDED:
        raise SystemExit(f"bench.compare: {name}: {failed}")
    console.print(f"{name} failed, so it is left out: {failed}", markup=False)


def _table(case: Case, seen: dict[str, list[Figures]]) -> Table:
    events = case.unit == "event"
    table = Table(box=SIMPLE_HEAD, show_edge=False, title=case.title, title_justify="left")
    table.add_column("", no_wrap=True)
    headings = [f"CPU µs per {case.unit}", "narwhal to it", "TTFT p50, ms"]
    if events:
        headings += ["gap p50, ms", "p99"]
    for heading in [*headings, "failed"]:
        table.add_column(heading, justify="right")
    cpu = {name: statistics.median(one.cpu for one in rounds) for name, rounds in seen.items()}
    for name, rounds in seen.items():
        cells = (
            [_cell(cpu[name] * 1e6, ".1f"), _cell(cpu["narwhal"] / cpu[name], ".2f", " ×")]
            if cpu[name]
            else ["", ""]
        )
        cells.append(_cell(statistics.median(one.ttft for one in rounds) * 1000))
        if events:
            cells.append(_cell(statistics.median(one.gap_p50 for one in rounds) * 1000))
            cells.append(_cell(statistics.median(one.gap_p99 for one in rounds) * 1000))
        table.add_row(name, *cells, str(sum(one.failed for one in rounds) or ""))
    return table


def _cell(value: float, form: str = ".2f", unit: str = "") -> str:
    return "" if math.isnan(value) else f"{value:{form}}{unit}"  # nan: no request was served


def _peer(text: str) -> Router:
    name, equals, rest = text.partition("=")
    url, *pids = rest.split(",")
    if not name or not equals or not url or not all(pid.isdigit() for pid in pids):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=URL[,PID...]")
    return Router(name, url, tuple(map(int, pids)))


def _ports(text: str) -> tuple[int, int]:
    prefill, _, decode = text.partition(",")
    if not (prefill.isdigit() and decode.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not PREFILL_PORT,DECODE_PORT")
    return int(prefill), int(decode)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="of each case and router (default: 3)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a round (default: 6)")
    parser.add_argument("--streams", type=int, default=500, help="open at once (default: 500)")
    parser.add_argument(
        "--engines", type=_ports, default=(0, 0), metavar="P,D", help="ports of the stand-in engines"
    )
    parser.add_argument("--peer", type=_peer, action="append", default=[], metavar="NAME=URL[,PID...]")
    args = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), args.engines)
        try:
            routers = [Router(_NEEDED[0], bench.decode, ()), bench.narwhal()]
            for name, start in (
                ("HAProxy", bench.haproxy), ("nginx", bench.nginx), ("vllm-router", bench.vllm_router),
                ("narwhal-inference", lambda: bench.narwhal_inference(args.streams)),
            ):  # fmt: skip
                try:
                    routers.append(start())
                except LookupError as missing:
                    console.print(f"Not on the PATH, so left out: {missing}")
                except Failed as failed:
                    _leave_out(console, name, failed)
            uvloop.run(_measure([*routers, *args.peer], args, console))
        finally:
            bench.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
