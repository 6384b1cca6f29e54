"""Prediction: will this request meet its targets, if it is let in?

Its projected TTFT is the time since it arrived, the wait until its prefill begins, the prefill, and what
comes between that and the first token (a seat for decode, the handoff, the first step), each as learned; and
something set aside for chance. The wait is found by playing the line forward, and corrected by how such
forecasts have turned out. Against the budget, the projection says whether the request may come in, and as
long as it waits, whether it may go on waiting.

For chance, one who would have to wait sets aside more when it comes than later. So few who were let in are
turned away after all, and those only when they are about to miss. While nothing is known of how long prompts
take, everybody may come in; so may a prompt far longer than any that engines have shown their pace with.
"""

from __future__ import annotations

import math
from typing import Any

from narwhal._fast.price import Board
from narwhal.admission.line import Line, SeatRequest
from narwhal.fleet.table import FleetTable, Phase
from narwhal.fleet.work import Work
from narwhal.outcomes import Ending
from narwhal.profiles.correction import Correction

# In standard deviations of what the engines are predicted to do.
_CAUTION = 0.5
# What one who would have to wait sets aside when it comes, of that.
_ON_ARRIVAL = 3.0
# A forecast wait is corrected by no more than this: if no wait was ever risked, none would be learned from.
_LEAST_FACTOR, _MOST_FACTOR = 0.5, 2.0
# The correction rests on so many waits: each is a sum over many prompts, and varies little by itself.
_WAITS = 16.0
# If an idle engine has shown nothing for so long, one request is let through to it whatever is thought of it.
_STALE_S = 10.0
# The mean length of answers follows the last so many requests.
_MEMORY = 200


class Predictor:
    """Judges requests against the fleet as it is."""

    def __init__(self, table: FleetTable, board: Board, work: Work) -> None:
        self.waits = Correction(_WAITS)  # seen waits against forecast ones
        self._table = table
        self._work = work
        self._board = board
        self._output_tokens = 0.0
        self._requests = 0

    def expect(self, request: SeatRequest, line: Line, now: float) -> None:
        """A request for prefill has come. Note how long it will take after its prefill.

        Raises Ending if it is refused for what would become of it, or of others, when it decodes.
        """
        if request.output_tokens > 0:
            self._requests = min(self._requests + 1, _MEMORY)
            self._output_tokens += (request.output_tokens - self._output_tokens) / self._requests
        self._board.look_ahead(request, len(line), max(self._output_tokens, 1.0))
        if request.refusable:
            self._check_decode(request, line, now)
            request.refusable = not self._board.unseen(request)
        request.caution = _CAUTION if request.refusable else 0.0

    def judge(self, request: SeatRequest, line: Line, engine: int | None, now: float) -> int | None:
        """Project the request's TTFT: it would be seated on `engine` at once, or (None) have to wait.

        Returns the engine to seat it on. Raises Ending if it is refused.
        """
        board = self._board
        known = board.known()
        if engine is None:
            # One who would have to wait sets aside more than it will later.
            caution, request.caution = request.caution, request.caution * _ON_ARRIVAL
            board.forecast(line.entries, request, now)
            request.caution = caution
            if request.lost and known:
                engine = self._unproven(request, now)
                if engine is None:
                    raise self.refusal(request, now)
            request.forecast_s, request.asked_at = request.wait_s / board.wait_factor, now
        if engine is not None:
            board.note(request, engine, now)
        if known:
            request.projected_ttft_s = (
                now - request.arrived + request.wait_s + request.prefill_s + request.handoff_s
            )
        return engine

    def _unproven(self, request: SeatRequest, now: float) -> int | None:
        # Only traffic can correct what is thought of an engine; if none is let through to it, nothing will.
        shown = self._work.shown[Phase.PREFILL]
        engine = self._board.idle_since(request, shown, now - _STALE_S)
        if engine < 0:
            return None
        shown[engine] = now
        request.refusable = False
        return engine

    def waited(self, request: SeatRequest, engine: int, now: float) -> None:
        """A request that waited gets its seat on `engine`."""
        seen_s = now - request.asked_at + self._board.left_s(engine, now)
        self.waits.learn(request.forecast_s, seen_s)
        self._board.wait_factor = min(max(self.waits.factor, _LEAST_FACTOR), _MOST_FACTOR)

    def lost(self, line: Line, now: float) -> list[SeatRequest]:
        """Those in line who can't meet their target any more."""
        if not line.refusable:
            return []
        self._board.forecast(line.entries, None, now)
        return self._board.take_lost(line.entries)

    def refusal(self, request: SeatRequest, now: float) -> Ending:
        """Why a request that is lost is turned away."""
        budget_s = request.target - request.arrived
        parts = {
            "elapsed_s": now - request.arrived,
            "wait_s": request.wait_s,
            "prefill_s": request.prefill_s,
            "handoff_s": request.handoff_s,
            "spread_s": request.spread_s,
        }
        engine, total_s = request.engine, sum(parts.values())
        alone_s = self._board.alone_s(request)
        if alone_s > budget_s:
            details = self._details(request, alone_s, {"alone_s": alone_s}, request.engine)
            tokens, request.tokens = request.tokens, 1
            least_s = self._board.alone_s(request)
            request.tokens = tokens
            if least_s > budget_s:  # the prompt's length is not to blame
                what = f"even after a prompt of one token the first takes {_shown(least_s)} s"
                remedy = "raise the target"
            else:
                what = f"the first token after a prompt of {tokens:.0f} tokens takes {_shown(alone_s)} s"
                remedy = "shorten the prompt or raise the target"
            return Ending(
                "prompt_exceeds_ttft",
                f"{what} on an idle engine and the budget is {_shown(budget_s)} s; {remedy} "
                "(x-slo-ttft-ms, or slo.ttft_s)",
                details=details,
            )
        overrun_s = total_s - budget_s
        return Ending(
            "ttft_projected",
            f"the first token is projected {_shown(total_s)} s after the request's arrival and the budget is "
            f"{_shown(budget_s)} s; try again in {max(1, math.ceil(overrun_s))} s",
            overrun_s=overrun_s,
            details=self._details(request, total_s, parts, engine),
        )

    def _details(
        self, request: SeatRequest, total_s: float, parts: dict[str, float], engine: int
    ) -> dict[str, Any]:
        details: dict[str, Any] = {
            "projected_ttft_s": round(total_s, 6),
            "parts": {name: round(seconds, 6) for name, seconds in parts.items()},
            "budget_s": round(request.target - request.arrived, 6),
            "engine": self._table.ids[engine] if engine >= 0 else None,
        }
        if engine >= 0 and self._board.models.prefill_s(engine, request.tokens).extrapolated:
            details["extrapolated"] = True
        return details

    def _check_decode(self, request: SeatRequest, line: Line, now: float) -> None:
        interval_s, fastest, free, roomiest = self._board.decode_outlook(
            request, len(line), line.kv, max(self._output_tokens, 1.0)
        )
        if roomiest >= 0 and request.kv > free:
            table, engine = self._table, self._table.ids[roomiest]
            decoding = (e for e in range(len(table)) if Phase.DECODE in table.needs(e))
            largest = max(table.kv_capacity[e] for e in decoding)
            raise Ending(
                "kv_projected",
                f"the request is expected to hold {request.kv:.0f} KV tokens, and {max(free, 0):.0f} will be "
                f"free on {engine}, the engine with the most room",
                details={
                    "kv_tokens": round(request.kv), "free_kv_tokens": round(max(free, 0)), "engine": engine
                },
                # The answer's length is a guess that moves with traffic: only the prompt settles it for good.
                hopeless=request.tokens > largest,
            )  # fmt: skip
        if fastest >= 0 and interval_s > request.tpot_s:
            shown = self._work.shown[Phase.DECODE]
            if not self._table.decode_seats[fastest] and now - shown[fastest] > _STALE_S:
                shown[fastest] = now
                return
            engine = self._table.ids[fastest]
            raise Ending(
                "tpot_projected",
                f"with this request a token is projected to take {_shown(interval_s)} s even on {engine}, "
                f"the fastest engine, and the target is {_shown(request.tpot_s)} s",
                details={
                    "projected_tpot_s": round(interval_s, 6), "target_s": round(request.tpot_s, 6),
                    "engine": engine,
                },
            )  # fmt: skip


def _shown(seconds: float) -> str:
    return f"{seconds:.3g}" if seconds < 100 else f"{seconds:.0f}"
