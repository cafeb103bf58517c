"""What a simulation takes: the cost of an inference, the clock's behaviour, power states and surroundings."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.evaluator.dynamics.thermal import RcChain


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """One inference at the fastest operating point, split by what follows the clock and the supply.

    `compute_s` and `compute_j` scale with 1/f and V^2; `fixed_s` (dispatch, DRAM) and `memory_j` with neither;
    `static_w` flows while the processor works and scales with V^2.
    """

    compute_s: float
    fixed_s: float = 0.0
    compute_j: float = 0.0
    memory_j: float = 0.0
    static_w: float = 0.0

    def __post_init__(self) -> None:
        if min(dataclasses.astuple(self)) < 0 or self.compute_s + self.fixed_s <= 0:
            raise ValueError("an inference takes time, and no part of its cost can be negative")

    def latency_s(self, clock_ratio: float = 1.0) -> float:
        """Return the service time at that share of the fastest clock."""
        return self.fixed_s + self.compute_s / clock_ratio

    def power_w(self, clock_ratio: float = 1.0, supply_ratio: float = 1.0) -> float:
        """Return the mean power while it runs at that operating point."""
        scale = supply_ratio**2
        return (self.compute_j * scale + self.memory_j) / self.latency_s(clock_ratio) + self.static_w * scale


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """An operating point relative to the fastest one."""

    clock_ratio: float
    supply_ratio: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What another processor, with a clock of its own, does for each request."""

    cost: Cost
    points: tuple[Point, ...] = (Point(clock_ratio=1.0, supply_ratio=1.0),)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TripPoint:
    """While `node` is above `at_c` (and until it is `hysteresis_k` below), hold the clock back.

    To `clock_ratio` of the fastest clock, or so far that the processor draws at most `cap_w`, or, with neither, by
    one operating point per `step_s` (0: per control step), down while it is too hot and not cooling, up again below.
    """

    node: int
    at_c: float
    hysteresis_k: float = 3.0
    clock_ratio: float | None = None
    cap_w: float | None = None
    step_s: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """A slow-down that is piecewise linear in the die's temperature (R10), in parts per K.

    Below the threshold the clock stays and the circuit slows (by `below_per_k` from `reference_c` on); above it
    the clock is dithered between operating points so that latency rises by `above_per_k`.
    """

    threshold_c: float
    below_per_k: float
    above_per_k: float
    reference_c: float = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sleep:
    """Power states of the processor; without a sleep, `dwell_s` is infinite.

    Waking takes `wake_s` (normal, `wake_spread_s`), then `restore_s`, and the first inference `cold_s` more; a request
    that arrives during `save_s` waits for its end. `wake_j` is the energy of one way in and out.
    """

    idle_w: float = 0.0
    sleep_w: float = 0.0
    dwell_s: float = float("inf")
    save_s: float = 0.0
    wake_s: float = 0.0
    wake_spread_s: float = 0.0
    restore_s: float = 0.0
    cold_s: float = 0.0
    wake_j: float = 0.0

    @property
    def overhead_s(self) -> float:
        """What the first inference after a sleep takes longer, on average."""
        return self.wake_s + self.restore_s + self.cold_s


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A simulated device with one model on one of its processors.

    `policy` "performance" holds the fastest clock that the trips allow, "ondemand" the slowest that keeps the
    processor busy for less than 80 % of the time. `schedule` replays a clock given over time instead:
    (from second, clock ratio). `rest_w` is the rest of the device, which heats the die too. `others` serve each request
    with it, one after the other; all heat one die, and each one's governor sees how busy it is itself.
    """

    cost: Cost
    chain: RcChain
    points: tuple[Point, ...] = (Point(clock_ratio=1.0, supply_ratio=1.0),)
    trips: tuple[TripPoint, ...] = ()
    drift: Drift | None = None
    sleep: Sleep = Sleep()
    policy: str = "performance"
    schedule: tuple[tuple[float, float], ...] = ()
    jitter_ratio: float = 0.0
    rest_w: float = 0.0
    others: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        if self.policy not in {"performance", "ondemand"}:
            raise ValueError(f"unknown clock policy {self.policy!r} (known: performance, ondemand)")
        for points in (self.points, *(part.points for part in self.others)):
            ratios = [point.clock_ratio for point in points]
            if not ratios or ratios != sorted(ratios, reverse=True) or min(ratios) <= 0:
                raise ValueError("operating points must be given fastest first, each with a clock above 0")
        if any(not 0 <= trip.node < len(self.chain.names) for trip in self.trips):
            raise ValueError("a trip names a node that the heat path does not have")

    def alone(self) -> tuple[Machine, ...]:
        """Return each processor as a machine that does only its own part."""
        parts = (Part(cost=self.cost, points=self.points), *self.others)
        return tuple(dataclasses.replace(self, cost=part.cost, points=part.points, others=()) for part in parts)

    def whole_cost(self) -> Cost:
        """Return the cost over all processors; `static_w` is the mean power of what is static, each in its own time."""
        costs = (self.cost, *(part.cost for part in self.others))
        sums = {
            name: sum(getattr(c, name) for c in costs) for name in ("compute_s", "fixed_s", "compute_j", "memory_j")
        }
        static_j = sum(cost.static_w * cost.latency_s() for cost in costs)
        return Cost(**sums, static_w=static_j / (sums["compute_s"] + sums["fixed_s"]))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """Air temperature and supply over time as (second, value), linear in between; altitude above the sea.

    `supply` is relative to the nominal supply and scales power by its square. Altitude lowers every trip by
    5 K per 1000 m (R17): thin air carries less heat, so the same die temperature leaves less in hand.
    """

    ambient_c: tuple[tuple[float, float], ...] = ((0.0, 25.0),)
    supply: tuple[tuple[float, float], ...] = ((0.0, 1.0),)
    altitude_m: float = 0.0
    start_c: tuple[float, ...] | None = None

    def derating_k(self) -> float:
        """Return by how much the trips are lowered."""
        return 5.0 * self.altitude_m / 1000.0
