"""Latency, power and temperature over simulated time: a device under a workload trace."""

from experiments.evaluator.dynamics.conditions import Cap, Conditions, swing
from experiments.evaluator.dynamics.result import Result
from experiments.evaluator.dynamics.simulate import simulate
from experiments.evaluator.dynamics.thermal import RcChain
from experiments.evaluator.dynamics.traces import Trace, TraceError, parse_trace, periodic, poisson
from experiments.evaluator.dynamics.values import Cost, Drift, Machine, Part, Point, Sleep, Surroundings, TripPoint

__all__ = [
    "Cap",
    "Conditions",
    "Cost",
    "Drift",
    "Machine",
    "Part",
    "Point",
    "RcChain",
    "Result",
    "Sleep",
    "Surroundings",
    "Trace",
    "TraceError",
    "TripPoint",
    "parse_trace",
    "periodic",
    "poisson",
    "simulate",
    "swing",
]
