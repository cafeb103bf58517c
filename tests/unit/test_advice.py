from __future__ import annotations

import csv
import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import store
from experiments.advice.choice import Demands, choose
from experiments.advice.examples import Work, dense_layers, make_examples
from experiments.advice.job import _graph
from experiments.advice.rates import break_even_per_s, rate_sentences
from experiments.advice.tree import Leaf, cross_validated, decide, describe, learn
from experiments.advise import main
from experiments.evaluator.dynamics import (
    Conditions,
    Cost,
    Machine,
    Point,
    RcChain,
    Trace,
    TripPoint,
    poisson,
    simulate,
)
from experiments.evaluator.dynamics.assemble import DynamicsError, assemble
from experiments.plans import write_plan
from experiments.scenarios.power_states import cpu_machine, npu_machine
from experiments.sustained import main as sustained
from experiments.sustained_job import Run, _overtakings, _tied
from graphs import zoo
from partition import Device, Figure, Plan, Segment, load_device

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEVICE = load_device("sa8255p")
PARTS = {"compute": 1e-4, "memory": 5e-5, "static": 2e-4}


def row(backend: str, processor: str, latency_s: float, **changes: object) -> store.Row:
    return dataclasses.replace(
        store.Row(
            key=f"{backend}{processor}", status="ok", model="matmul", device="sa8255p", processor=processor,
            backend=backend, precision="int8", options="", segments=1, cuts=(), plan_digest=f"{backend}{processor}",
            latency_s=latency_s, latency_low_s=latency_s, latency_high_s=latency_s, latency_source="simulated",
            energy_j=sum(PARTS.values()), energy_low_j=1e-4, energy_high_j=1e-3, energy_parts_j=PARTS,
            dram_bytes=10_000,
        ),
        **changes,  # type: ignore[arg-type]
    )  # fmt: skip


def run_of(entry: store.Row, trace: Trace, horizon_s: float = 60.0, device: Device = DEVICE) -> Run:
    machine = assemble(device, entry).machine
    name = f"{entry.backend} {entry.processor}"
    return Run(name=name, row=entry, result=simulate(machine, trace, horizon_s=horizon_s), each=1)


def test_a_metered_energy_splits_into_what_flows_anyway_and_what_the_work_adds() -> None:
    made = assemble(DEVICE, row("x", "npu", 1e-3, energy_parts_j={"net": 1e-3, "idle": 3e-3}))
    assert made.machine.cost.compute_j == pytest.approx(1e-3)
    assert made.machine.cost.memory_j == 0.0
    assert made.machine.cost.static_w == pytest.approx(3.0)
    assert any("cannot tell memory from compute" in note for note in made.assumptions)


def test_t11a_the_cpu_is_recommended_and_the_dispatch_floor_is_why() -> None:
    # y = MatMul(x[1,64], W[64,64]): 1.0 ms on the device, 0.02 ms on the CPU.
    npu = DEVICE.processor("npu")
    floor = Figure(value=0.9e-3, low=0.9e-3, high=0.9e-3, tag="assumed", source="engineering")
    others = tuple(p for p in DEVICE.processors if p.name != "npu")
    device = dataclasses.replace(DEVICE, processors=(*others, dataclasses.replace(npu, dispatch_s=floor)))
    closed = Trace(title="closed", arrivals_s=None)
    runs = [
        run_of(row("ort_qnn", "npu", 1.0e-3), closed, 5.0, device),
        run_of(row("ort_cpu", "cpu", 2e-5), closed, 5.0),
    ]
    choice = choose(runs, Demands(), device)
    assert choice.run is runs[1]
    text = " ".join(choice.sentences)
    assert text.startswith("Deploy ort_cpu cpu: mean 20.0 us")
    assert "the dispatch floor of 900 us is 90% of its time" in text


def test_a_deadline_leaves_the_least_energy_and_a_cap_leaves_out() -> None:
    trace = poisson(5.0, 60.0, 0)
    frugal = {**PARTS, "static": 5e-5}
    runs = [run_of(row("fast", "npu", 1e-3), trace), run_of(row("frugal", "npu", 2e-3, energy_parts_j=frugal), trace)]
    assert choose(runs, Demands(), DEVICE).run is runs[0]
    strict = choose(runs, Demands(deadline_s=0.1), DEVICE)
    assert strict.run is runs[1]
    assert "fast npu is faster" in strict.sentences[1]
    nothing = choose(runs, Demands(deadline_s=1e-4), DEVICE)
    assert nothing.run is None
    assert "misses the deadline" in nothing.sentences[1]
    capped = choose(runs, Demands(cap_w=1e-6), DEVICE)
    assert "against a cap of" in capped.sentences[1]


def test_latency_given_away_for_less_energy_is_told_with_both() -> None:
    trace = Trace(title="closed", arrivals_s=None)
    less = {**PARTS, "static": 5e-5}
    bounds = {"energy_low_j": 1e-4, "energy_high_j": 3e-4}
    fast = run_of(row("fast", "npu", 1e-3, dram_bytes=40_000), trace)
    frugal = run_of(
        row("frugal", "npu", 1.08e-3, energy_parts_j=less, energy_j=sum(less.values()), dram_bytes=10_000, **bounds),
        trace,
    )
    assert choose([fast, frugal], Demands(), DEVICE).run is fast
    chosen = choose([fast, frugal], Demands(slack_ratio=0.1), DEVICE)
    assert chosen.run is frugal
    text = " ".join(chosen.sentences)
    assert "more energy for 7.4% less latency, with 40.0 kB through the DRAM against 10.0 kB" in text
    assert "100 uJ to 300 uJ against 100 uJ to 1.00 mJ, which may be the same" in text


def test_a_rival_whose_interval_overlaps_is_called_a_tie() -> None:
    trace = poisson(5.0, 60.0, 0)
    best = run_of(row("best", "npu", 1e-3, latency_low_s=0.9e-3, latency_high_s=1.2e-3), trace)
    near = run_of(row("near", "npu", 1.3e-3, latency_low_s=1.1e-3, latency_high_s=1.5e-3), trace)
    far = run_of(row("far", "npu", 3e-3, latency_low_s=2e-3, latency_high_s=4e-3), trace)
    text = " ".join(choose([best, near, far], Demands(), DEVICE).sentences)
    assert "By the intervals of their latencies near npu may be as fast: a tie." in text
    assert "a tie" not in " ".join(choose([best, far], Demands(), DEVICE).sentences)


def test_waking_up_and_falling_behind_are_named() -> None:
    runs = [run_of(row("a", "npu", 5e-4), poisson(1.0, 60.0, 0)), run_of(row("b", "cpu", 3e-3), poisson(1.0, 60.0, 0))]
    text = " ".join(choose(runs, Demands(), DEVICE).sentences)
    assert "waking up costs" in text
    late = [
        run_of(row("slow", "cpu", 0.3), poisson(5.0, 60.0, 0)),
        run_of(row("a", "npu", 5e-4), poisson(5.0, 60.0, 0)),
    ]
    assert "cannot keep up" in " ".join(choose(late, Demands(), DEVICE).sentences)


def test_the_last_request_under_way_is_no_falling_behind() -> None:
    busy = run_of(row("a", "npu", 5e-4), poisson(200.0, 60.0, 0)).result
    assert dataclasses.replace(busy, unfinished=2).keeps_up
    assert not dataclasses.replace(busy, unfinished=busy.requests // 10).keeps_up
    assert not dataclasses.replace(busy, latency_s=np.array([])).keeps_up


def test_the_energy_that_a_needlessly_fast_rival_takes_is_told_over_that_of_the_choice() -> None:
    trace = poisson(200.0, 60.0, 0)
    frugal, fast = run_of(row("frugal", "npu", 2e-3), trace), run_of(row("fast", "cpu", 1e-3), trace)
    more = (fast.energy_j() or 0.0) / (frugal.energy_j() or 1.0) - 1.0
    assert more > 0.1  # the CPU idles at a higher power
    text = " ".join(choose([frugal, fast], Demands(deadline_s=1.0), DEVICE).sentences)
    assert f"takes {more:.0%} more energy to no use" in text


def test_the_graph_of_a_finished_run_is_found_in_its_plans(tmp_path: Path) -> None:
    graph = zoo.build("squeezenet1_1", size=64)
    segment = Segment(graph=graph, device=DEVICE, processor="npu", compiler="snpe", precision="fp16")
    plan = Plan.of(graph, (segment,))
    write_plan(plan, tmp_path)
    mine = row("snpe", "npu", 1e-3, plan_digest=plan.digest, model="mine")
    lost = row("a", "npu", 1e-3, model="mine")
    found = _graph(tmp_path, [lost, mine])
    assert found is not None
    assert found.macs == graph.macs
    assert _graph(tmp_path, [lost]) is None


def test_the_break_even_rate_is_that_of_r14_whichever_comes_first() -> None:
    npu, cpu = npu_machine(), cpu_machine()
    found, turned = (break_even_per_s(*pair, Conditions(), 0) for pair in ((npu, cpu), (cpu, npu)))
    assert found is not None
    assert turned is not None
    assert (found[1], turned[1]) == (True, False)  # the NPU wins above: below it keeps waking up
    assert found[0] == turned[0] == pytest.approx(0.79, rel=0.15)  # the study's, by four hours of requests
    half = dataclasses.replace(cpu, cost=Cost(compute_s=0.4))
    assert break_even_per_s(half, cpu, Conditions(), 0) is None


def test_the_break_even_rate_is_that_of_the_air_asked_for() -> None:
    points = (Point(clock_ratio=1.0, supply_ratio=1.0), Point(clock_ratio=0.5, supply_ratio=0.8))
    npu = dataclasses.replace(npu_machine(), trips=(TripPoint(node=0, at_c=60.0),), points=points)
    assert break_even_per_s(npu, cpu_machine(), Conditions(), 0) is not None
    hot = Conditions(ambient_c=(70.0, 70.0))  # its clock is held back all the time, so it never gets ahead
    assert break_even_per_s(npu, cpu_machine(), hot, 0) is None


def test_the_rate_from_which_another_processor_wins_is_told() -> None:
    trace = poisson(0.2, 60.0, 0)
    runs = [run_of(row("fast", "cpu", 1e-3), trace), run_of(row("sleepy", "npu", 2e-4), trace)]
    (sentence,) = rate_sentences(runs[0], runs, DEVICE, Conditions(), 0)
    assert "requests/s on sleepy npu is faster than fast cpu, below it is slower" in sentence
    assert not list(rate_sentences(runs[0], runs[:1], DEVICE, Conditions(), 0))


def split_row(**changes: object) -> store.Row:
    parts = ({"compute": 1e-4, "memory": 1e-5, "static": 2e-4}, {"compute": 3e-4, "memory": 3e-5, "static": 4e-4})
    both = {cause: parts[0][cause] + parts[1][cause] for cause in parts[0]}
    fields: dict[str, object] = {
        "segments": 3, "segment_processors": ("cpu", "npu", "cpu"), "segment_latency_s": (4e-4, 1e-3, 6e-4),
        "segment_energy_parts_j": (parts[0], parts[1], {}), "energy_parts_j": both,
    }  # fmt: skip
    return dataclasses.replace(row("d", "cpu+npu", 2.1e-3), **{**fields, **changes})  # type: ignore[arg-type]


def test_a_split_plan_wakes_all_of_its_processors_and_each_part_follows_its_own_clock() -> None:
    split = assemble(DEVICE, split_row())
    alone = assemble(DEVICE, row("x", "npu", 1e-3))
    assert split.machine.sleep.overhead_s > alone.machine.sleep.overhead_s
    assert split.machine.sleep.dwell_s == alone.machine.sleep.dwell_s
    npu, handover = split.machine.others
    assert split.machine.cost.latency_s() == pytest.approx(1e-3)
    assert npu.cost.latency_s() == pytest.approx(1e-3)
    assert npu.points == alone.machine.points
    assert split.machine.points != npu.points
    assert handover.cost.latency_s(0.1) == pytest.approx(1e-4)
    assert split.machine.whole_cost().latency_s() == pytest.approx(2.1e-3)
    assert split.machine.whole_cost().compute_j == pytest.approx(4e-4)
    old = assemble(DEVICE, split_row(segment_processors=None))
    assert old.machine.others == ()
    assert any("all follows the clock of cpu" in note for note in old.assumptions)


def test_what_a_device_file_does_not_give_is_said() -> None:
    notes = " ".join(assemble(DEVICE, row("x", "npu", 1e-3)).assumptions)
    assert "gives no heat path: that of a board with a heat sink is assumed" in notes
    assert "gives no operating points for its npu" in notes
    own = " ".join(assemble(load_device("sm8650"), row("x", "npu", 1e-3, device="sm8650")).assumptions)
    assert "no operating points" not in own
    with pytest.raises(DynamicsError, match="has no energy"):
        assemble(DEVICE, row("x", "npu", 1e-3, energy_parts_j=None))
    with pytest.raises(DynamicsError, match="has no processor 'dsp'"):
        assemble(DEVICE, row("x", "dsp", 1e-3))


points = st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=20, max_size=60)


@given(points, st.floats(1.0, 50.0))
def test_one_bound_is_learned_without_error(values: list[tuple[float, float]], bound: float) -> None:
    examples = [{"x": x, "y": y} for x, y in values]
    labels = ["low" if x <= bound else "high" for x, _ in values]
    tree = learn(examples, labels, depth=2)
    sides = np.unique(labels, return_counts=True)[1]
    if len(sides) == 2 and sides.min() >= 4:
        assert [decide(tree, e)[0] for e in examples] == labels
    assert describe(tree)


def test_a_tree_of_one_kind_is_a_leaf_and_folds_keep_groups_apart() -> None:
    assert learn([{"x": 1.0}] * 5, ["a"] * 5) == Leaf(label="a", agree=5, total=5)
    examples = [{"x": float(i)} for i in range(40)]
    labels = ["a" if i < 20 else "b" for i in range(40)]
    assert cross_validated(examples, labels, [f"g{i % 8}" for i in range(40)]) > 0.9
    with pytest.raises(ValueError, match="5 folds need"):
        cross_validated(examples, labels, ["g"] * 40)
    with pytest.raises(ValueError, match="at least one"):
        learn([], [])


def test_the_learned_rule_beats_both_published_ones() -> None:
    works = (
        *dense_layers(),
        Work(name="a", macs=5 * 10**7, parameters=2_500_000, boundary_bytes=606_112),
        Work(name="b", macs=4 * 10**9, parameters=25_000_000, boundary_bytes=606_112),
    )
    examples = make_examples(load_device("sm8650"), works)
    labels = [example.fastest for example in examples]
    right = cross_validated([e.features for e in examples], labels, [e.group for e in examples])
    assert right > max(
        sum(e.density == e.fastest for e in examples), sum(e.chart == e.fastest for e in examples)
    ) / len(examples)


def stored(folder: Path, *rows: store.Row) -> str:
    folder.mkdir()
    for entry in rows:
        store.append_row(folder, entry)
    return str(folder)


def test_the_commands_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = stored(tmp_path / "run", row("ort_qnn", "npu", 5e-4), row("ort_cpu", "cpu", 3e-3))
    assert (
        main([folder, "--device", "sa8255p", "--rate", "5", "--minutes", "1", "--deadline", "20ms", "--no-rule"]) == 0
    )
    assert "Deploy ort_" in capsys.readouterr().out
    assert main([folder, "--device", "sa8255p", "--rate", "5", "--minutes", "1", "--deadline", "1us", "--no-rule"]) == 1
    assert sustained([folder, "--device", "sa8255p", "--trace", "poisson:5/s", "--minutes", "2"]) == 0
    out = capsys.readouterr().out
    assert "assumed, because the device file does not say" in out
    made = next((tmp_path / "run" / "sustained").iterdir())
    assert {path.name for path in made.iterdir()} == {
        "sustained.png", "sustained.svg", "sustained.csv", "assumptions.json",
    }  # fmt: skip


def test_rows_that_are_not_ranked_are_left_out_with_their_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = row("snpe", "npu", 1e-5, status="uncalibrated", reason="a reference has a wild cost")
    folder = stored(tmp_path / "run", row("ort_qnn", "npu", 5e-4), bare)
    asked = [folder, "--device", "sa8255p", "--minutes", "1"]
    assert main([*asked, "--rate", "5", "--no-rule"]) == 0
    out = capsys.readouterr().out
    assert "left out: snpe npu" in out
    assert "a reference has a wild cost" in out
    assert "Deploy ort_qnn" in out
    assert sustained([*asked, "--trace", "poisson:5/s"]) == 0
    assert "left out: snpe npu" in capsys.readouterr().out


def replayed(name: str, schedule: tuple[tuple[float, float], ...], compute_s: float, off: float) -> Run:
    """A run whose latency follows a schedule, with bounds that are `off` to either side."""
    chain = RcChain(names=("die",), capacities_j_per_k=(20.0,), resistances_k_per_w=(2.0,))

    def one(ratio: float) -> Run:
        machine = Machine(cost=Cost(compute_s=compute_s * ratio), chain=chain, schedule=schedule)
        result = simulate(machine, Trace(title="closed", arrivals_s=None), horizon_s=600.0)
        return Run(name=name, row=row("x", "npu", compute_s), result=result, each=1)

    return dataclasses.replace(one(1.0), bounds=(one(1.0 - off), one(1.0 + off)))


def test_where_the_ranking_crosses_is_certain_only_outside_of_the_intervals() -> None:
    falls = ((0.0, 1.0), (180.0, 196 / 260), (360.0, 196 / 330))
    first, last = replayed("A", falls, 0.196, 0.02), replayed("B", (), 0.217, 0.02)
    assert _overtakings([first, last]) == ["B overtakes A at minute 3 (3 to 3, anywhere in their intervals)"]
    assert _tied([first, last], "A", 60.0) == []
    wide = replayed("B", (), 0.217, 0.2)
    assert _overtakings([first, wide]) == [
        "B overtakes A at minute 3; elsewhere in their intervals they do not cross: a tie"
    ]
    assert _tied([first, wide], "A", 60.0) == ["B"]


def test_intervals_reach_the_table_of_a_long_run(tmp_path: Path) -> None:
    near = {"latency_low_s": 2.5e-4, "latency_high_s": 2e-3}
    folder = stored(
        tmp_path / "run", row("a", "npu", 5e-4, **near), row("b", "cpu", 6e-4, **near), split_row()
    )  # fmt: skip
    assert sustained([folder, "--device", "sa8255p", "--trace", "periodic:2/s", "--minutes", "2"]) == 0
    made = next((tmp_path / "run" / "sustained").iterdir())
    with (made / "sustained.csv").open(newline="") as file:
        lines = {line["backend"]: line for line in csv.DictReader(file)}
    for line in lines.values():
        for unit in ("s", "j"):
            low, typical, high = (float(line[f"sustained{end}_{unit}"]) for end in ("_low", "", "_high"))
            assert low <= typical <= high
    assert lines["b"]["burst_standing"] == "frontier"  # a CPU wakes sooner than an NPU
    assert lines["a"]["burst_standing"] == "tie"
    assert lines["d"]["burst_standing"] == "dominated"  # it wakes both
    assert lines["d"]["processor"] == "cpu+npu"


@pytest.mark.parametrize("lines", ["100,1", "1,1e300"], ids=["late", "endless"])
def test_a_trace_without_an_answer_in_the_first_minute_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str
) -> None:
    folder, trace = stored(tmp_path / "run", row("ort_qnn", "npu", 5e-4)), tmp_path / "own.csv"
    trace.write_text(f"arrival_s,work\n{lines}\n")
    assert sustained([folder, "--device", "sa8255p", "--minutes", "3", "--trace", str(trace)]) == 1
    out = capsys.readouterr().out
    assert "answers anything within the first minute" in out
    assert ("comes after 100 s" in out) == (lines == "100,1")


@pytest.mark.parametrize(
    ("command", "argument"),
    [
        (sustained, "--ambient=298"),
        (sustained, "--ambient=25:1e6"),
        (sustained, "--thermal-cap=10@353"),
        (sustained, "--supply=90:110"),
        (sustained, "--altitude=1e9"),
        (sustained, "--minutes=1e9"),
        (sustained, "--minutes=1e-9"),
        (main, "--minutes=1e9"),
        (main, "--ambient=298"),
        (main, "--slack=5"),
    ],
)
def test_what_is_of_another_unit_is_refused(
    capsys: pytest.CaptureFixture[str], command: Callable[[list[str]], int], argument: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        command(["resnet18", "--device", "sa8255p", argument])
    assert stop.value.code == 2
    assert f"argument {argument.partition('=')[0]}: expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "sa8225p"], "did you mean"),
        (["--device", "sm8650"], "no usable candidate on sm8650"),
        (["--device", "sa8255p", "--trace", "poisson:0/s"], "above 0"),
        (["--device", "sa8255p", "--trace", "none.csv"], "cannot read none.csv"),
    ],
)
def test_wrong_arguments_are_told_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    folder = stored(tmp_path / "run", row("ort_qnn", "npu", 5e-4))
    assert sustained([folder, *arguments]) == 2
    assert message in capsys.readouterr().err
