"""Measure the bars of the split search on synthetic costs: `python -m benchmarks.search [NAME ...]`.

Prints, per case, the best of several times (wall and CPU), the size of the answer, and the bar. The machine is
shared, so CPU time is the steadier figure; nothing here is a cost of a real device.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import search_graphs as graphs_of
from partition.search import (
    Baselines,
    Cost,
    Place,
    Problem,
    SegmentTable,
    Space,
    TooWide,
    additive_table,
    certified_cover,
    convex_gap,
    cover_gaps,
    lazy_frontier,
    search,
    search_convex,
    search_parallel,
    search_segments,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SCRATCHPAD_BYTES = 1 << 20


def spilling_table(net: graphs_of.Net, problem: Problem) -> SegmentTable:
    """Charge each segment for all its weights beyond a scratchpad: a cost that no sum of nodes has."""
    weights = dict.fromkeys(problem.nodes, 0)
    for layer in net.layers:
        weights[layer.name if layer.name in weights else f"g{layer.group}"] += layer.weight_bytes
    total = np.append(0, np.cumsum([weights[name] for name in problem.nodes]))
    spilled = np.maximum(total[None, :] - total[:, None] - SCRATCHPAD_BYTES, 0)
    table = additive_table(problem)
    for number, unit in enumerate(graphs_of.UNITS):
        table.rows[:, :, number, 0] += spilled / unit.bytes_s
        table.rows[:, :, number, 1] += spilled * unit.j_per_byte
    return table


def timed(name: str, bar: str, run: Callable[[], str], repeat: int = 3) -> None:
    walls, cpus, text = [], [], ""
    for _ in range(repeat):
        wall, cpu = time.perf_counter(), time.process_time()
        text = run()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{name:34s} {min(walls):7.2f} s wall {min(cpus):7.2f} s CPU  peak {peak:5.0f} MB  bar {bar:28s} {text}",
        flush=True,
    )


def resnet_interval() -> None:
    net = graphs_of.resnet50()
    problem = graphs_of.problem(net)
    table = spilling_table(net, problem)
    timed(
        "ResNet-50, 122 ops, interval costs",
        "0.5 s with arcs",
        lambda: f"{len(search_segments(problem, table))} plans",
    )


def chain_exact() -> None:
    problem = graphs_of.problem(graphs_of.residual_chain(1000))
    timed("1,000 nodes, additive, exact", "2 s", lambda: f"{len(search(problem, space=Space.ORDER_CUTS))} plans")


def chain_cover() -> None:
    problem = graphs_of.problem(graphs_of.residual_chain(10_000))

    def run() -> str:
        cover = certified_cover(problem, 0.01, space=Space.ORDER_CUTS)
        return f"{len(cover)} plans, proved {cover.gap_ratio:.4f}"

    timed("10,000 nodes, 1 % cover", "60 s, 2 GB", run, repeat=1)


def convex() -> None:
    for name, net, bar in (("YOLOv5s", graphs_of.yolov5s(), "3 s"), ("GoogLeNet", graphs_of.googlenet(), "10 s, 1 GB")):
        problem = graphs_of.problem(net, fused=True)

        def run(problem: Problem = problem) -> str:
            found = search(problem)
            return f"{len(found)} plans, {found.effort.states:,} states, {found.effort.labels:,} labels"

        timed(f"{name} fused, all convex cuts", bar, run)


def lazy() -> None:
    net = graphs_of.resnet50()
    problem = graphs_of.problem(net, fused=True)
    bounds = spilling_table(net, problem)
    for jitter in (0.0, 0.02, 0.05, 0.1):
        surprise = 1 + jitter * np.random.default_rng(1).random((*bounds.rows.shape[:3], 1))
        true = SegmentTable(bounds.rows * np.where(np.isfinite(bounds.rows), surprise, 1))
        exact = search_segments(problem, true)
        for gap in (0.0, 0.01):
            timed(
                f"lazy, {jitter:.0%} unpredictable, gap {gap:.0%}",
                "17 % of compiles" if gap == 0 else "5 % of compiles",
                partial(_lazy, problem, bounds, true, gap, exact.costs),
                repeat=1,
            )


def _lazy(problem: Problem, bounds: SegmentTable, true: SegmentTable, gap: float, exact: np.ndarray) -> str:
    number = {name: i for i, name in enumerate(problem.nodes)}

    def oracle(place: Place, nodes: tuple[str, ...]) -> Cost:
        row = true.rows[number[nodes[0]], number[nodes[-1]] + 1, problem.places.index(place)]
        return Cost(latency_s=row[0], energy_j=row[1])

    found = lazy_frontier(problem, bounds, oracle, gap_ratio=gap)
    assert found.frontier is not None
    share = found.oracle_calls / found.possible_calls
    real = max(cover_gaps(found.frontier.costs, exact).max(), 0.0)
    return (
        f"{found.oracle_calls} of {found.possible_calls} compiles = {share:.1%}, {found.rounds} rounds, "
        f"gap proved {found.gap_ratio:.4f}, real {real:.4f}"
    )


def spaces() -> None:
    """Show what each restriction of the space costs, on the same table."""
    net = graphs_of.resnet50()
    everything = search(graphs_of.problem(net))
    for space in (Space.SINGLE_TENSOR_CUTS, Space.ORDER_CUTS, Space.CONVEX_CUTS):
        found = search(graphs_of.problem(net), space=space)
        gap = cover_gaps(found.costs, everything.costs).max()
        print(f"  {found.space:45s} {len(found):4d} plans, worst gap to all convex cuts {gap:.4f}")


def baselines() -> None:
    problem = graphs_of.problem(graphs_of.resnet50(), fused=True)
    for s in Baselines(problem, search(problem)).all():
        cost = f"{s.latency_s * 1e3:7.2f} ms {s.energy_j * 1e3:7.2f} mJ"
        print(f"  {s.name:28s} {cost}  latency +{s.latency_gap_ratio:6.1%}  from the frontier {s.front_gap_ratio:6.1%}")


def parallel() -> None:
    """Show how far parallel schedules can be from the optimum, with the figures of three lookalikes."""
    for name, net in (("ResNet-50", graphs_of.resnet50()), ("YOLOv5s", graphs_of.yolov5s()),
                      ("GoogLeNet", graphs_of.googlenet())):  # fmt: skip
        problem = graphs_of.problem(net, fused=True)

        def run(problem: Problem = problem) -> str:
            found = search_parallel(problem)
            return f"{len(found)} schedules, proved within {found.gap_ratio:.1%}"

        timed(f"{name} fused, parallel", "-", run, repeat=1)


def sets() -> None:
    """Search costs that are no sum over all convex cuts; where there are too many segments, prove a gap."""
    for name, net in (("ResNet-50", graphs_of.resnet50()), ("YOLOv5s", graphs_of.yolov5s()),
                      ("GoogLeNet", graphs_of.googlenet())):  # fmt: skip
        problem = graphs_of.problem(net, fused=True)
        timed(f"{name} fused, sets of nodes", "-", partial(_sets, problem, _spilling(net, problem)), repeat=1)


def _spilling(net: graphs_of.Net, problem: Problem) -> Callable[[Place, tuple[str, ...]], Cost]:
    weights = dict.fromkeys(problem.nodes, 0)
    for layer in net.layers:
        weights[f"g{layer.group}"] += layer.weight_bytes
    unit_of = {unit.name: unit for unit in graphs_of.UNITS}

    def cost(place: Place, nodes: tuple[str, ...]) -> Cost:
        parts = [problem.dispatch[place], *(problem.costs[node, place] for node in nodes)]
        spilled = max(sum(weights[node] for node in nodes) - SCRATCHPAD_BYTES, 0)
        unit = unit_of[place.processor]
        return Cost(
            latency_s=sum(c.latency_s for c in parts) + spilled / unit.bytes_s,
            energy_j=sum(c.energy_j for c in parts) + spilled * unit.j_per_byte,
        )

    return cost


def _sets(problem: Problem, cost: Callable[[Place, tuple[str, ...]], Cost]) -> str:
    ordered = search_segments(problem, SegmentTable.of(problem, cost))
    try:
        exact = search_convex(problem, cost)
    except TooWide as error:
        return f"one order is proved within {convex_gap(problem, ordered):.1%} of all convex cuts; {error}"
    missed = max(cover_gaps(ordered.costs, exact.costs).max(), 0.0)
    return f"{len(exact)} plans, {exact.effort.arcs:,} arcs; one order misses them by up to {missed:.2%}"


CASES = {
    "resnet": resnet_interval,
    "chain": chain_exact,
    "cover": chain_cover,
    "convex": convex,
    "lazy": lazy,
    "parallel": parallel,
    "sets": sets,
    "spaces": spaces,
    "baselines": baselines,
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("case", nargs="*", metavar="CASE", help=", ".join(CASES))
    asked = parser.parse_args(argv).case or list(CASES)
    for name in asked:
        CASES[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
