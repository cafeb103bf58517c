"""The exact search beside a MILP epsilon-constraint (HiGHS) and NSGA-II (pymoo), on the same integer costs.

Needs `pip install pymoo highspy`, which nothing else here does: `python -m benchmarks.search_peers [SECONDS]`.
Every plan of a peer is evaluated again by our own integer evaluator before it counts: solvers have returned wrong
optima on these models with their default settings.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import highspy
import numpy as np
from pymoo.algorithms.moo.nsga2 import NSGA2
from pymoo.core.problem import Problem as Vectorised
from pymoo.operators.crossover.pntx import TwoPointCrossover
from pymoo.operators.mutation.pm import PM
from pymoo.operators.repair.rounding import RoundingRepair
from pymoo.optimize import minimize

from benchmarks import search_graphs as graphs_of
from partition.search import Space, search
from partition.search.encode import Encoded
from partition.search.general import nondominated
from partition.search.plans import plan_cost

if TYPE_CHECKING:
    from partition.search.arrays import Ints


def hypervolume(points: Ints, corner: Ints) -> float:
    """Area between a front and `corner`."""
    front = points[nondominated(points)].astype(float)
    front = front[(front <= corner).all(1)]
    if not len(front):
        return 0.0
    upper = np.append(corner[1], front[:-1, 1])
    return float(((corner[0] - front[:, 0]) * (upper - front[:, 1])).sum())


def report(name: str, points: Ints, exact: Ints, seconds: float) -> None:
    corner = exact.max(0)
    truth = {tuple(p) for p in exact.tolist()}
    hit = len(truth & {tuple(p) for p in points.tolist()})
    share = hypervolume(points, corner) / hypervolume(exact, corner)
    print(
        f"  {name:34s} {seconds:8.2f} s  {hit:4d} of {len(exact)} points, {len(exact) - hit} missed, "
        f"hypervolume {share:.4f} of the exact one",
        flush=True,
    )


class Milp:
    """Assignment model of the fixed node order: node on place, tensor moved to memory, segment opened."""

    def __init__(self, encoded: Encoded) -> None:
        self.encoded = encoded
        self.solver = highspy.Highs()
        self.solver.silent()
        self.solver.setOptionValue("threads", 1)
        # With the default tolerances two trials returned a wrong optimum.
        for tolerance in ("mip_feasibility_tolerance", "primal_feasibility_tolerance"):
            self.solver.setOptionValue(tolerance, 1e-9)
        self.solver.setOptionValue("mip_rel_gap", 0.0)
        self.terms: list[tuple[Any, int, int]] = []
        self._assign()
        self._open()
        self._move()
        self.latency = sum(v * (latency / 1e6) for v, latency, _ in self.terms if latency)
        self.energy = sum(v * (energy / 1e6) for v, _, energy in self.terms if energy)

    def _binary(self, row: Ints) -> Any:  # noqa: ANN401 - the solver's own variable type
        variable = self.solver.addBinary()
        self.terms.append((variable, int(row[0]), int(row[1])))
        return variable

    def _assign(self) -> None:
        places = range(len(self.encoded.problem.places))
        self.on = [
            [self._binary(self.encoded.node_cost[n, p]) for p in places] for n in range(len(self.encoded.allowed))
        ]
        for row in self.on:
            self.solver.addConstr(sum(row) == 1)

    def _open(self) -> None:
        for node, row in enumerate(self.on):
            for place, here in enumerate(row):
                opened = self._binary(self.encoded.dispatch[place])
                before = self.on[node - 1][place] if node else 0
                self.solver.addConstr(opened >= here - before)

    def _move(self) -> None:
        encoded = self.encoded
        homes = range(len(encoded.homes))
        for t, tensor in enumerate(encoded.problem.tensors):
            for origin in homes:
                for home in homes:
                    if origin != home:
                        self._pay(t, tensor.consumers, origin, home)

    def _pay(self, t: int, consumers: tuple[str, ...], origin: int, home: int) -> None:
        encoded, tensor = self.encoded, self.encoded.problem.tensors[t]
        if tensor.producer is None:
            if tensor.source != encoded.homes[origin]:
                return
            made: Any = 1
        else:
            made = self._at(encoded.node_index[tensor.producer], origin)
        moved = self._binary(encoded.move(t, origin, home))
        for name in consumers:
            self.solver.addConstr(moved >= made + self._at(encoded.node_index[name], home) - 1)
        if tensor.target == encoded.homes[home]:
            self.solver.addConstr(moved >= made)

    def _at(self, node: int, home: int) -> Any:  # noqa: ANN401
        return sum(v for p, v in enumerate(self.on[node]) if self.encoded.place_home[p] == home)

    def solve(self) -> Ints | None:
        """Minimise latency, then energy at that latency scaled in; return the plan's true integer cost."""
        self.solver.minimize(self.latency + self.energy * 1e-7)
        if self.solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        chosen = [int(np.argmax([self.solver.val(v) for v in row])) for row in self.on]
        return plan_cost(self.encoded, chosen)[:2]


def epsilon_constraint(encoded: Encoded, budget_s: float) -> tuple[Ints, float, int]:
    """Step down in energy from the fastest plan until the budget is spent; return points, seconds, solves."""
    model, points, start, solves = Milp(encoded), [], time.perf_counter(), 0
    while time.perf_counter() - start < budget_s:
        point = model.solve()
        solves += 1
        if point is None:
            break
        points.append(point)
        # One nJ is below the solver's tolerance at this scale; 100 nJ is not.
        model.solver.addConstr(model.energy <= (int(point[1]) - 100) / 1e6)
    return np.array(points), time.perf_counter() - start, solves


class Placement(Vectorised):  # type: ignore[misc]
    """One integer gene per node: its place."""

    def __init__(self, encoded: Encoded) -> None:
        self.encoded = encoded
        count, places = encoded.allowed.shape
        super().__init__(n_var=count, n_obj=2, xl=0, xu=places - 1, vtype=int)

    def _evaluate(self, x: Ints, out: dict[str, Ints], *_: object, **__: object) -> None:
        out["F"] = np.array([plan_cost(self.encoded, row.astype(int))[:2] for row in x])


def nsga2(encoded: Encoded, seed: int, *, seeded: bool) -> tuple[Ints, float]:
    rng = np.random.default_rng(seed)
    count, places = encoded.allowed.shape
    start = rng.integers(0, places, (100, count))
    if seeded:  # single-place plans and plans of few runs, which suit the problem far better than noise
        for row in range(100):
            cuts = np.sort(rng.integers(0, count + 1, rng.integers(0, 6)))
            start[row] = np.concatenate(
                [np.full(n, rng.integers(0, places)) for n in np.diff(np.concatenate([[0], cuts, [count]]))]
            )
        start[:places] = np.arange(places)[:, None]
    algorithm = NSGA2(
        pop_size=100,
        sampling=start,
        crossover=TwoPointCrossover(),
        mutation=PM(prob=0.9, prob_var=1 / count, repair=RoundingRepair(), vtype=float),
    )
    begin = time.perf_counter()
    result = minimize(Placement(encoded), algorithm, ("n_gen", 200), seed=seed, verbose=False)
    return np.atleast_2d(result.F).astype(np.int64), time.perf_counter() - begin


def main() -> int:
    budget_s = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    for name, net in (("ResNet-50 fused", graphs_of.resnet50()), ("YOLOv5s fused", graphs_of.yolov5s())):
        problem = graphs_of.problem(net, fused=True)
        encoded = Encoded(problem)
        begin = time.perf_counter()
        found = search(problem, space=Space.ORDER_CUTS)
        ours = time.perf_counter() - begin
        exact = encoded.integers(np.pad(found.costs, ((0, 0), (0, 2))))[:, :2]
        print(f"{name}: {len(problem.nodes)} nodes, all cuts of one order")
        report("label setting (ours)", exact, exact, ours)
        points, seconds, solves = epsilon_constraint(encoded, budget_s)
        report(f"HiGHS, {solves} solves", points, exact, seconds)
        whole = seconds / max(solves, 1) * len(exact)
        print(
            f"    at {seconds / max(solves, 1):.2f} s a solve all points take {whole:.0f} s, {whole / ours:.0f} x ours"
        )
        for seeded in (False, True):
            points, seconds = nsga2(encoded, 0, seeded=seeded)
            report(f"NSGA-II 100 x 200{', seeded' if seeded else ''}", points, exact, seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
