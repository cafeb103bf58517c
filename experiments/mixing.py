"""Plans that mix int8 and float: their costs, their cuts, and what int8 does to the outputs.

Operators are those of the float form (folded and fused) that int8 was made of. What int8 and float places hand over
is float: the int8 side quantises what it reads and dequantises what it gives, and that conversion is costed as a pass
over memory, the tensor in one form and a quarter of it in the other.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from compilers import CompilerError, Limits, in_child
from experiments import store
from experiments.split_costs import (
    CODED_SHARE,
    CostError,
    dispatch_cost,
    is_int8,
    moved_share,
    operator_problem,
    value,
)
from graphs import Graph, Mixer, Verdict, extract, load, save
from partition.search import FREE, Cost, Piece, Place, Problem, Space, Transfer, coarsen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from graphs import OutputError
    from partition import Device

    Feed = dict[str, NDArray[Any]]

MOST_RUNS: Final = 48
STEPS: Final = 400


def mixed_problem(mixer: Mixer, device: Device, places: Sequence[Place], pins: Mapping[str, str] = {}) -> Problem:
    """Ask about the operators of the float form, on places of both kinds; what int8 leaves out goes with its maker.

    An int8 operator costs its own work and its weights as the QDQ graph has them, and is refused where its backend
    refuses any part of it there.

    Raises:
        CostError: a shape is not known, or the device has no DRAM rate and so no cost of a conversion.
    """
    if device.dram_bytes_per_s is None:
        raise CostError(f"{device.name} gives no dram.bytes_per_s, so a border of precisions has no cost")
    floating = operator_problem(mixer.floating, device, tuple(p for p in places if not is_int8(p)), pins)
    costs, refusals = _int8(mixer, device, tuple(p for p in places if is_int8(p)), floating.nodes)
    for node, reasons in floating.refusals.items():
        refusals.setdefault(node, {}).update(reasons)
    for node, processor in pins.items():
        others = [place for place in places if place.processor != processor]
        refusals.setdefault(node, {}).update(dict.fromkeys(others, f"pinned to {processor}"))
    problem = dataclasses.replace(
        floating,
        places=tuple(places),
        costs={**floating.costs, **costs},
        refusals=refusals,
        transfers={(a.home, b.home): _transfer(device, a, b) for a in places for b in places if a.home != b.home},
        dispatch={place: dispatch_cost(device, place) for place in places},
    )
    return coarsen(problem, _together(mixer, problem.nodes), Space.FUSED_GROUP_BORDERS) if mixer.bound else problem


def _int8(
    mixer: Mixer, device: Device, places: tuple[Place, ...], nodes: tuple[str, ...]
) -> tuple[dict[tuple[str, Place], Cost], dict[str, dict[Place, str]]]:
    """Cost the nodes of the float form in int8; one that int8 leaves out costs nothing."""
    mixture = mixer.whole
    whole = operator_problem(mixture.graph, device, places)
    costs = dict.fromkeys(((node, place) for node in nodes for place in places), FREE)
    refusals: dict[str, dict[Place, str]] = {}
    for part, owners in mixture.owners.items():
        for place in places:
            before, more = costs[owners[0], place], whole.costs[part, place]
            costs[owners[0], place] = Cost(
                latency_s=before.latency_s + more.latency_s, energy_j=before.energy_j + more.energy_j
            )
        refusals.setdefault(owners[0], {}).update(whole.refusals.get(part, {}))
    return costs, {node: reasons for node, reasons in refusals.items() if reasons}


def _together(mixer: Mixer, nodes: Sequence[str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for node in nodes:
        groups.setdefault(mixer.bound.get(node, node), []).append(node)
    return list(groups.values())


def _transfer(device: Device, origin: Place, wanted: Place) -> Transfer:
    """Hand over in shared DRAM, and convert on the int8 side where the forms differ; per byte of the float form."""
    handover_s = 0.0 if origin.processor == wanted.processor else value(device.handover_s)
    per_byte_j = 2 * moved_share(origin.home, wanted.home) * value(device.dram_j_per_byte)
    if is_int8(origin) == is_int8(wanted):
        return Transfer(latency_s=handover_s, energy_j_per_byte=per_byte_j)
    converter = device.processor((origin if is_int8(origin) else wanted).processor)
    bytes_per_s = value(device.dram_bytes_per_s) / (1 + CODED_SHARE)
    per_byte_j += CODED_SHARE * value(device.dram_j_per_byte) + value(converter.active_w) / bytes_per_s
    return Transfer(latency_s=handover_s, bytes_per_s=bytes_per_s, energy_j_per_byte=per_byte_j)


def cut_mixed(mixer: Mixer, pieces: Sequence[Piece]) -> tuple[Graph, ...]:
    """Cut a plan's pieces, in the order of the plan: int8 from the QDQ graph, the rest from the float form.

    A tensor made in float is quantised by the first int8 piece that reads it, and passes in int8 from there.
    """
    lowered = [node for piece in pieces if is_int8(piece.place) for node in piece.nodes]
    if len(pieces) == 1:
        return (mixer.quantised if lowered else mixer.floating,)
    if not lowered:
        return tuple(extract(mixer.floating, piece.nodes) for piece in pieces)
    mixture = mixer.mix(lowered)
    number = {node: index for index, piece in enumerate(pieces) for node in piece.nodes}
    inside: list[list[str]] = [[] for _ in pieces]
    for part, owners in mixture.owners.items():
        inside[min(number[owner] for owner in owners)].append(part)
    return tuple(extract(mixture.graph, parts) for parts in inside)


def part_of(mixer: Mixer, piece: Piece) -> Graph:
    """Cut one piece as if all others were of its precision: what a compile tells of its cost.

    The conversions at a border of precisions are the transfers' cost then.
    """
    if not is_int8(piece.place):
        return extract(mixer.floating, piece.nodes)
    if len(piece.nodes) == len(mixer.floating.nodes()):
        return mixer.quantised
    inside = frozenset(piece.nodes)
    return extract(mixer.whole.graph, [part for part, owners in mixer.whole.owners.items() if owners[0] in inside])


def int8_work(mixer: Mixer) -> dict[str, tuple[int, int]]:
    """Return (MACs, weight bytes) in int8 of every operator of the float form."""
    work = {node.name: (0, 0) for node in mixer.floating.nodes()}
    for node in mixer.whole.graph.nodes():
        owner = mixer.whole.owners[node.name][0]
        work[owner] = (work[owner][0] + (node.macs or 0), work[owner][1] + (node.weight_bytes or 0))
    return work


def with_noise(problem: Problem, noise: Sequence[float]) -> Problem:
    """Give the int8 costs of each node its noise as their error; float places count none.

    A node whose noise is infinite is refused in int8.
    """
    of = dict(zip(problem.nodes, noise, strict=True))
    costs = {
        (node, place): dataclasses.replace(cost, error=of[node] if is_int8(place) and math.isfinite(of[node]) else 0.0)
        for (node, place), cost in problem.costs.items()
    }
    refusals = {node: dict(reasons) for node, reasons in problem.refusals.items()}
    for node in (node for node in problem.nodes if math.isinf(of[node])):
        coded = filter(is_int8, problem.places)
        refusals.setdefault(node, {}).update(dict.fromkeys(coded, "in int8 it makes an output NaN or infinite"))
    return dataclasses.replace(problem, costs=costs, refusals=refusals)


def measured_noise(
    mixer: Mixer, parts: Sequence[tuple[str, ...]], feed: Feed, reference: Feed, build: Path
) -> tuple[float, ...]:
    """Measure for each set of operators the noise that they alone in int8 put on the outputs of the model.

    That is noise over signal, a power ratio, of the worst output; a plan's prediction is the sum over its int8
    operators, right as far as their noises are small and not correlated. Where there are more than MOST_RUNS sets,
    neighbours are measured together and share the noise. What was measured before is read from `build`.

    Raises:
        CompilerError: a run failed, or no output is a number with a signal.
    """
    key = [
        version("onnxruntime"),
        mixer.floating.digest,
        mixer.quantised.digest,
        parts,
        {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in feed.items()},
    ]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    path = build / f"{mixer.quantised.name}-noise-{name}.json"
    if not path.exists():
        with tempfile.TemporaryDirectory(prefix="edgefrontier-") as folder:
            files = Path(folder, "float.onnx"), Path(folder, "int8.onnx")
            for graph, file in zip((mixer.floating, mixer.quantised), files, strict=True):
                save(graph, file)
            store.write_json(path, in_child(_noise, *files, list(parts), feed, reference, limits=Limits()))
    return tuple(json.loads(path.read_text(encoding="utf-8")))


def _noise(floating: Path, quantised: Path, parts: list[tuple[str, ...]], feed: Feed, reference: Feed) -> list[float]:
    mixer = Mixer(load(floating), load(quantised))
    step = -(-len(parts) // MOST_RUNS)
    neighbours = [parts[start : start + step] for start in range(0, len(parts), step)]
    errors = mixer.errors(([n for part in some for n in part] for some in neighbours), feed, reference)
    noise = [max(map(noise_of, one.values())) for one in errors]
    return [total / len(some) for total, some in zip(noise, neighbours, strict=True) for _ in some]


def in_steps(noise: Sequence[float]) -> tuple[float, ...]:
    """Round noises to STEPS steps of their sum, so that the search meets few different sums of them."""
    step = sum(filter(math.isfinite, noise)) / STEPS
    return tuple(round(one / step) * step if step and math.isfinite(one) else one for one in noise)


def noise_of(error: OutputError) -> float:
    """Return noise over signal of one output, 0 for an exact or an integer one, infinite where NaN has appeared.

    Raises:
        CompilerError: the output has no such figure; the message says why.
    """
    if error.sqnr_db is not None:
        return float(10 ** (-error.sqnr_db / 10))
    if error.verdict in {Verdict.EXACT, Verdict.INTEGER, Verdict.EMPTY}:
        return 0.0
    if error.verdict is Verdict.NOT_FINITE:
        return math.inf
    raise CompilerError(f"an output of the model with some nodes in int8 has no error figure: {error.verdict}")


def decibels(noise: float | None) -> float | None:
    """Turn noise over signal into a signal-to-noise ratio in dB; None for an unknown one, infinite for none."""
    if noise is None:
        return None
    return math.inf if noise == 0 else -10 * math.log10(noise)
