"""The command line checked and turned into the search's question."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
from typing import TYPE_CHECKING, Final

from compilers import Action, UnknownBackendError, get_compiler
from experiments import store
from experiments.arguments import UserError
from experiments.candidates import known_backends
from experiments.mixing import cut_mixed, mixed_problem, part_of
from experiments.model import calibration_for, load_model, variants
from experiments.split_costs import (
    CostError,
    cut,
    is_int8,
    missing_figures,
    offered_places,
    operator_problem,
    unit_problem,
    with_homes,
)
from experiments.splitting.costs_file import read_costs
from experiments.splitting.proofs import without_proof
from graphs import Calibration, Graph, GraphError, Mixer, float_form
from partition import (
    CALIBRATION_FILE,
    PRECISIONS,
    CalibrationFileError,
    CalibrationSet,
    Device,
    DeviceError,
    load_calibration,
    load_device,
    quantised_units,
)
from partition.search import Constraints, Objective, Place, Problem, ProblemError, Space, coarsen, in_space

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from partition.search import Piece

KNOWN_OBJECTIVES: Final[tuple[Objective, ...]] = ("latency", "energy", "memory", "error", "period")
SPACES: Final = {
    "layers": Space.SINGLE_TENSOR_CUTS,
    "units": Space.CONVEX_CUTS,
    "order": Space.ORDER_CUTS,
    "convex": Space.CONVEX_CUTS,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The command line as values."""

    model: str
    device: str
    mode: str
    backends: Sequence[str]
    precisions: Sequence[str]
    objectives: Sequence[str]
    deadline: float | None
    power_cap: float | None
    memory_cap: float | None
    min_sqnr: float | None
    period_cap: float | None
    rule_threshold: float | None
    pins: Sequence[tuple[str, str]]
    max_segments: int | None
    space: str | None
    oracle: str
    gap: float
    max_compiles: int | None
    contention: float
    costs: Path | None
    verify: int
    out: Path
    seed: int
    bindings: Sequence[tuple[str, int]]
    calibration: Path | None
    time_limit: int
    latencies: Path | None = None

    @property
    def where(self) -> str:
        """Where to cut: what was asked, else every operator of a cost file, else the borders of fused groups."""
        return self.space or ("convex" if self.costs else "units")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """The options once they are known to make sense.

    `variant` is the graph that is cut: the float graph or its QDQ form; where precisions mix, the folded float form
    whose operators plans name, and `mixer` cuts both. `operators` asks about its operators (in a QDQ graph, about
    what quantisation binds), `problem` about what the search may cut between.
    """

    options: Options
    graph: Graph
    variant: Graph
    mixer: Mixer | None
    device: Device
    places: tuple[Place, ...]
    operators: Problem
    problem: Problem
    space: Space
    objectives: tuple[Objective, ...]
    constraints: Constraints
    calibration: Calibration
    latencies: CalibrationSet
    folder: Path
    notes: tuple[str, ...]

    def cut(self, pieces: Sequence[Piece]) -> tuple[Graph, ...]:
        """Cut out the model of each piece of a plan."""
        return cut(self.variant, pieces) if self.mixer is None else cut_mixed(self.mixer, pieces)

    def part(self, piece: Piece) -> Graph:
        """Cut out one piece as if the others were of its precision."""
        return cut(self.variant, [piece])[0] if self.mixer is None else part_of(self.mixer, piece)

    @property
    def wants_error(self) -> bool:
        """Tell whether the error of the outputs takes part."""
        return "error" in self.objectives or self.constraints.error_cap is not None

    @property
    def wants_memory(self) -> bool:
        """Tell whether a segment's peak memory takes part."""
        return "memory" in self.objectives or self.constraints.memory_cap_bytes is not None


def check(options: Options) -> Request:
    """Load what the options name and see that they fit together.

    Raises:
        UserError: they do not; the message is one sentence with the way out.
    """
    objectives, constraints = _objectives(options), _constraints(options)
    _check_combination(options, constraints, objectives)
    try:
        device = load_device(options.device)
        backends = known_backends(options.backends)
        graph = load_model(options.model, options.bindings, options.seed)
        calibration = calibration_for(graph, options.calibration, options.seed)
        latencies = load_calibration(options.latencies or CALIBRATION_FILE)
        folder = options.out / _run_name(graph, options, calibration)
        store.open_run(folder)
        variant, mixer = _forms(graph, options, calibration)
        operators, places = _question(variant, mixer, device, backends, options)
        problem = unit_problem(variant, operators) if options.where == "units" else operators
        problem, space = in_space(problem, SPACES[options.where])
    except (
        DeviceError,
        GraphError,
        CalibrationFileError,
        CostError,
        ProblemError,
        UnknownBackendError,
    ) as error:
        raise UserError(str(error)) from error
    _check_pins(options, operators, "quantisation binds them")
    _check_pins(options, problem, f"no cut of --space {options.where} falls between them")
    return Request(
        options=options,
        graph=graph,
        variant=variant,
        mixer=mixer,
        device=device,
        places=places,
        operators=operators,
        problem=problem,
        space=space,
        objectives=objectives,
        constraints=constraints,
        calibration=calibration,
        latencies=latencies,
        folder=folder,
        notes=_notes(device, places, calibration, options),
    )


def _objectives(options: Options) -> tuple[Objective, ...]:
    default = ("period", "energy") if options.mode == "pipelined" else ("latency", "energy")
    asked = tuple(options.objectives) or default
    unknown = [o for o in asked if o not in KNOWN_OBJECTIVES]
    if unknown:
        raise UserError(f"unknown objective {unknown[0]!r} (known: {', '.join(KNOWN_OBJECTIVES)})")
    if len(asked) < 2:
        raise UserError("a frontier needs at least two objectives, for example --objectives latency,energy")
    return tuple(known for name in asked for known in KNOWN_OBJECTIVES if known == name)


def _check_combination(options: Options, constraints: Constraints, objectives: tuple[Objective, ...]) -> None:
    unknown = [p for p in options.precisions if p not in PRECISIONS]
    if unknown:
        raise UserError(f"unknown precision {unknown[0]!r} (known: {', '.join(PRECISIONS)})")
    reason = without_proof(options, constraints, objectives)
    if reason is not None:
        raise UserError(reason)


def _constraints(options: Options) -> Constraints:
    """Return the limits; pins are refusals of the problem."""
    return Constraints(
        deadline_s=options.deadline,
        power_cap_w=options.power_cap,
        memory_cap_bytes=options.memory_cap,
        error_cap=None if options.min_sqnr is None else 10 ** (-options.min_sqnr / 10),
        period_s=options.period_cap,
        max_segments=options.max_segments,
    )


def _forms(graph: Graph, options: Options, calibration: Calibration) -> tuple[Graph, Mixer | None]:
    """Return the graph whose operators are placed, and what mixes its int8 and its float form where both are asked."""
    made = variants(graph, options.precisions, calibration, options.out / "build")
    for precision, form in made.items():
        if isinstance(form, GraphError):
            raise UserError(f"{precision}: {form}")
    forms = {precision: form for precision, form in made.items() if isinstance(form, Graph)}
    if "int8" not in forms or len(forms) == 1:
        return forms[options.precisions[0]], None
    mixer = Mixer(float_form(graph), forms["int8"])
    return mixer.floating, mixer


def _question(
    variant: Graph, mixer: Mixer | None, device: Device, backends: Sequence[str], options: Options
) -> tuple[Problem, tuple[Place, ...]]:
    """Build the problem per operator; the operators of a QDQ graph are what quantisation binds."""
    pins = dict(options.pins)
    if options.costs is not None:
        problem = read_costs(options.costs, variant, device, backends, options.precisions[0], pins)
    else:
        places = _places(device, backends, options)
        _check_pinned(pins, variant, places)
        if mixer is not None:
            _check_mix(device, places)
            problem = mixed_problem(mixer, device, with_homes(places), pins)
            return problem, problem.places
        problem = operator_problem(variant, device, places, pins)
    if options.precisions[0] == "int8":
        units = quantised_units(variant)
        if len(units) < len(problem.nodes):
            problem = coarsen(problem, units, Space.FUSED_GROUP_BORDERS)
    return problem, problem.places


def _check_mix(device: Device, places: Sequence[Place]) -> None:
    kinds = {is_int8(place) for place in places}
    if len(kinds) < 2:
        only = "int8" if True in kinds else "float"
        raise UserError(f"{device.name} has {only} places only, so nothing mixes; give one precision in --precisions")


def _places(device: Device, backends: Sequence[str], options: Options) -> tuple[Place, ...]:
    every = bool(options.backends)
    found = [offered_places(device, backends, precision, every_backend=every) for precision in options.precisions]
    places = tuple(dict.fromkeys(place for places in found for place in places))
    _check_places(device, places, backends, ",".join(options.precisions))
    return places


def _check_places(device: Device, places: Sequence[Place], backends: Sequence[str], precision: str) -> None:
    if len(places) > 1:
        return
    reasons = []
    for processor in device.processors:
        if processor.name not in {place.processor for place in places}:
            able = [b for b in backends if get_compiler(b).available(Action.COMPILE, device, processor.name)]
            why = f"the device file has no {precision} rate" if able else "no backend here compiles for it"
            reasons.append(f"{processor.name}: {why}")
    have = f"only {places[0]}" if places else "no place"
    why = f" ({'; '.join(reasons)})" if reasons else ""
    raise UserError(
        f"a split needs two places, and {device.name} offers {have} in {precision}{why}; "
        "choose another device, --precisions or --backends"
    )


def _check_pinned(pins: dict[str, str], variant: Graph, places: Sequence[Place]) -> None:
    names = [node.name for node in variant.nodes()]
    processors = list(dict.fromkeys(place.processor for place in places))
    for node, processor in pins.items():
        if node not in names:
            close = difflib.get_close_matches(node, names, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UserError(f"--pin: the graph has no node {node!r}{hint}")
        if processor not in processors:
            raise UserError(f"--pin: {node!r} cannot go to {processor!r}; the places are on {', '.join(processors)}")


def _check_pins(options: Options, problem: Problem, why: str) -> None:
    """See that nodes which stay together are not pinned apart."""
    pins = dict(options.pins)
    for name in problem.nodes:
        wanted = {pins[m]: m for m in problem.members.get(name, (name,)) if m in pins}
        if len(wanted) > 1:
            pairs = " and ".join(f"{node!r} to {processor}" for processor, node in wanted.items())
            raise UserError(f"--pin: {pairs} cannot be, for {why}; pin them to one processor")


def _notes(device: Device, places: Sequence[Place], calibration: Calibration, options: Options) -> tuple[str, ...]:
    notes = []
    missing = () if options.costs else missing_figures(device, places)
    if missing:
        notes.append(f"{device.name} gives no {', '.join(missing)}: that counts nothing in the model")
    if "int8" in options.precisions and calibration.is_random:
        notes.append("int8 ranges come from random data: they tell cost, not accuracy (--calibration)")
    return tuple(notes)


def _run_name(graph: Graph, options: Options, calibration: Calibration) -> str:
    """Name the run by what it depends on, so that the same command finds, and resumes, its own results."""
    left_out = {"out", "verify", "time_limit", "model", "calibration"}
    key = {k: v for k, v in dataclasses.asdict(options).items() if k not in left_out}
    if options.costs is not None and options.costs.is_file():
        key["costs"] = hashlib.sha256(options.costs.read_bytes()).hexdigest()
    text = json.dumps([graph.digest, calibration.digest, key], sort_keys=True, default=str)
    return f"{graph.name}-splits-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
