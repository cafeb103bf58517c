"""Node costs of the user's own, measured or published, in place of the model: a JSON file, see docs/search.md."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

from compilers import Action, get_compiler
from experiments.arguments import UserError
from experiments.split_costs import precision_on
from partition import activations
from partition.search import Cost, Place, Problem, ProblemError, Tensor, Transfer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from graphs import Graph
    from partition import Device

_KEYS: Final = {"nodes", "dispatch", "transfer", "tensor_bytes", "io_on"}


def read_costs(
    path: Path, graph: Graph, device: Device, backends: Sequence[str], precision: str, pins: Mapping[str, str]
) -> Problem:
    """Read the costs of every operator of the graph; an operator without a cost on a processor is refused there.

    Raises:
        UserError: the file is missing or not of this form, or names what the graph or the device does not have.
        ProblemError: a cost is negative or not finite.
    """
    table = _read(path)
    names = [node.name for node in graph.nodes()]
    processors = list(table["nodes"])
    known = {p.name for p in device.processors}
    if unknown := [p for p in processors if p not in known]:
        raise UserError(f"{path}: {device.name} has no processor {unknown[0]!r}; it has {', '.join(sorted(known))}")
    if unknown := [n for costs in table["nodes"].values() for n in costs if n not in names]:
        raise UserError(f"{path}: the graph has no node {unknown[0]!r}")
    if unknown := [p for p in table.get("dispatch", {}) if p not in processors]:
        raise UserError(f"{path}: dispatch names {unknown[0]!r}; nodes has {', '.join(processors)}")
    places = tuple(_place(device, processor, backends, precision) for processor in processors)
    try:
        return _problem(table, graph, places, path, pins)
    except (TypeError, AttributeError) as error:
        raise UserError(f"{path} is no cost file (docs/search.md): {error}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the costs in {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is no JSON file: {error}") from error
    if not isinstance(table, dict) or not isinstance(table.get("nodes"), dict) or not set(table) <= _KEYS:
        raise UserError(f'{path} is no cost file: it needs "nodes" and may have {", ".join(sorted(_KEYS))}')
    return table


def _place(device: Device, processor: str, backends: Sequence[str], precision: str) -> Place:
    """Name the backend that could compile for the processor, or none: then its plans cannot be verified here."""
    able = [b for b in backends if get_compiler(b).available(Action.COMPILE, device, processor)]
    rate = precision_on(device.processor(processor), precision)
    return Place(processor=processor, backend=able[0] if able else "", precision=rate or precision)


def _problem(
    table: Mapping[str, Any], graph: Graph, places: tuple[Place, ...], path: Path, pins: Mapping[str, str]
) -> Problem:
    nodes = tuple(node.name for node in graph.nodes())
    transfer = Transfer(**table.get("transfer", {"latency_s": 0.0}))
    homes = [place.home for place in places]
    costs, refusals = {}, dict[str, dict[Place, str]]()
    for place in places:
        given = table["nodes"][place.processor]
        for name in nodes:
            if name not in given:
                refusals.setdefault(name, {})[place] = f"no cost in {path.name}"
                continue
            costs[name, place] = _cost(given[name], f"{path}: node {name!r} on {place.processor}")
            if pins.get(name, place.processor) != place.processor:
                refusals.setdefault(name, {})[place] = f"pinned to {pins[name]}"
    io_on = table.get("io_on")
    if io_on is not None and io_on not in homes:
        raise UserError(f"{path}: io_on {io_on!r} is none of the processors {', '.join(homes)}")
    return Problem(
        nodes=nodes,
        tensors=_tensors(graph, table.get("tensor_bytes", {}), io_on, path),
        places=places,
        transfers={(a, b): transfer for a in homes for b in homes if a != b},
        costs=costs,
        dispatch={
            place: _cost(table["dispatch"][place.processor], f"{path}: dispatch of {place.processor}")
            for place in places
            if place.processor in table.get("dispatch", {})
        },
        refusals=refusals,
    )


def _tensors(graph: Graph, sizes: Mapping[str, float], io_on: str | None, path: Path) -> tuple[Tensor, ...]:
    found = []
    made = {name for node in graph.nodes() for name in node.outputs}
    if unknown := sorted(sizes.keys() - made - graph.tensors().keys() - graph.initializers().keys()):
        raise UserError(f"{path}: the graph has no tensor {unknown[0]!r}")
    for t in activations(graph):
        size = sizes.get(t.name, t.size_bytes)
        if size is None or not math.isfinite(size) or size < 0 or size % 1:
            raise UserError(f"{path}: tensor {t.name!r} needs a size in tensor_bytes, in whole bytes; got {size}")
        found.append(
            Tensor(
                name=t.name,
                size_bytes=int(size),
                producer=t.producer,
                consumers=t.consumers,
                source=io_on if t.producer is None else None,
                target=io_on if t.is_output else None,
            )
        )
    return tuple(found)


def _cost(entry: Mapping[str, float], where: str) -> Cost:
    try:
        return Cost(latency_s=float(entry["latency_s"]), energy_j=float(entry["energy_j"]))
    except (KeyError, TypeError) as error:
        raise UserError(f"{where} needs latency_s and energy_j as numbers") from error
    except ValueError as error:
        raise ProblemError(f"{where}: {error}") from error
