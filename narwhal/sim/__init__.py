"""Engines made of software, which answer as real ones do and fail on demand."""

from narwhal.sim.engine import Seen, SimEngine, SimOptions
from narwhal.sim.faults import Fault, FaultName, Leg
from narwhal.sim.fleet import SimFleet
from narwhal.sim.script import expected_output
from narwhal.sim.timing import FAST, Curve, Interval, Timing

__all__ = [
    "FAST",
    "Curve",
    "Fault",
    "FaultName",
    "Interval",
    "Leg",
    "Seen",
    "SimEngine",
    "SimFleet",
    "SimOptions",
    "Timing",
    "expected_output",
]
