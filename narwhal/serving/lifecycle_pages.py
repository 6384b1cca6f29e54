"""Pages by which operators see where engines stand, drain them, and take them back."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from narwhal.fleet.lifecycle import DRAINS, State
from narwhal.outcomes import Ending
from narwhal.serving.pages import Answer, Later, as_json, fields_of, wrong

if TYPE_CHECKING:
    from narwhal.serving.head import RequestHead
    from narwhal.serving.router import Router

log = logging.getLogger("narwhal.serving")

_LONGEST_S = 7 * 86400.0
_REASON_LIMIT = 500  # characters


def show(router: Router, head: RequestHead, body: bytes) -> Answer:
    """Where each engine stands."""
    return as_json(_report(router))


def drain(router: Router, head: RequestHead, body: bytes) -> Later:
    """Give engines nothing new: `{"engines": ["p0"], "deadline_s": 60, "reason": "..."}`."""
    fields = fields_of(body, ("engines", "deadline_s", "reason"))
    engines = _engines(router, fields)
    deadline_s, reason = fields.get("deadline_s"), fields.get("reason")
    if deadline_s is not None and (
        isinstance(deadline_s, bool)
        or not isinstance(deadline_s, int | float)
        or not 0 <= deadline_s <= _LONGEST_S
    ):
        raise wrong("deadline_s", f"a number of seconds from 0 to {_LONGEST_S:g}", deadline_s)
    if reason is None:
        reason = "an operator drains it"
    elif not isinstance(reason, str) or not 1 <= len(reason) <= _REASON_LIMIT:
        raise wrong("reason", f"a string of 1 to {_REASON_LIMIT} characters", reason)
    router.drain(engines, deadline_s, reason)
    return _saved(router)


def readmit(router: Router, head: RequestHead, body: bytes) -> Later:
    """Take drained engines back: `{"engines": ["p0"]}`."""
    engines = _engines(router, fields_of(body, ("engines",)))
    router.readmit(engines)
    return _saved(router)


def _engines(router: Router, fields: dict[str, Any]) -> list[int]:
    names = fields.get("engines")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise wrong("engines", "a list of at least one engine's ID", names)
    index = router.table.index
    for place, name in enumerate(names):
        if name not in index:
            known = ", ".join(list(index)[:20])
            raise Ending(
                "invalid_field",
                f"`engines[{place}]` must be an engine of the fleet file ({known}); got {name[:64]}",
                param=f"engines[{place}]",
            )
    return [index[name] for name in dict.fromkeys(names)]


def _saved(router: Router) -> Later:
    """The report, once the drains are on the disk."""
    report, save = _report(router), router.save_drains()

    def page() -> Answer:
        try:
            save()
        except OSError as error:
            log.error("the drains can't be written to recovery.state_path: %s", error)
            report["warning"] = (
                f"this holds until the router restarts: recovery.state_path can't be written "
                f"({error.strerror or error})"
            )
        return as_json(report)

    return page


def _report(router: Router) -> dict[str, Any]:
    lifecycle, now = router.lifecycle, time.monotonic()
    lifecycle.tick(now)  # what is shown shall not be older than it needs to be
    return {
        "status": router.readiness.status.value,
        "engines": [
            {
                "id": router.table.ids[engine],
                "role": router.config.engines[engine].role.value,
                "state": life.state.value,
                "for_s": round(max(0.0, now - life.since), 3),
                "reason": life.why or None,
                "available": bool(router.table.available[engine]),
                "running": lifecycle.running(engine),
                "safe_to_stop": life.state is State.DRAINED,
                "drain_reason": life.drain_reason if life.state in DRAINS else None,
                "deadline_in_s": None
                if life.drain_until is None
                else round(max(0.0, life.drain_until - now), 3),
            }
            for engine, life in enumerate(lifecycle.lives)
            if not (life.retired and life.state is State.DRAINED)
        ],
        "stand_ins": {
            role.name.lower(): [router.table.ids[engine] for engine in others]
            for role, others in lifecycle.stand_ins().items()
        },
    }
