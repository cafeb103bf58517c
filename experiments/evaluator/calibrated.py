"""Latency from simulations by a fit to measured latencies: for chips that nobody here has, with its known error."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from compilers import Action, CompilerError, Estimate, Latency, PassingError, Source, compile_segment, get_compiler
from experiments.contradiction import WITNESS, contradiction, is_doubtful
from experiments.units import seconds
from partition import DRAM_BYTES, MACS, CalibrationSet, LatencyModel, Segment, load_device

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from compilers import Limits

_SIXTEEN_BITS = {"uint16", "int16"}
_LACKING = "; a simulation lacks the cost of some nodes, and the interval is the one of such models"


def latency_models(segment: Segment, calibration: CalibrationSet) -> tuple[LatencyModel, ...]:
    """Return the latency models that were fitted for the segment's device, compiler and precision, best first."""
    return calibration.find(segment.device.name, segment.compiler, _precision(segment))


def is_covered(segment: Segment, calibration: CalibrationSet) -> bool:
    """Tell whether latencies on the segment's processor are predicted, for whatever compiler and precision."""
    compilers = {model.compiler for model in calibration.models if model.device == segment.device.name}
    return any(get_compiler(c).available(Action.COMPILE, segment.device, segment.processor) for c in compilers)


def calibrated(
    segment: Segment, models: Sequence[LatencyModel], calibration: CalibrationSet, build: Path, limits: Limits
) -> tuple[Estimate, str]:
    """Predict the latency of a segment, with the 80 % interval of graphs that took no part in the fit.

    Compiles the segment for the devices that a latency model refers to, under the options it was fitted with; an
    option that the segment sets itself goes before. The first of `models` whose references can all simulate the
    segment predicts. Returns the estimate and a note that says how good such a prediction is.

    Raises:
        CompilerError: no model's references can simulate the segment, or its MACs are not known.
    """
    refused: list[CompilerError] = []
    for model in models:
        try:
            return _predicted(segment, model, calibration, build, limits)
        except CompilerError as error:
            refused.append(error)
    raise refused[0]


def _predicted(
    segment: Segment, model: LatencyModel, calibration: CalibrationSet, build: Path, limits: Limits
) -> tuple[Estimate, str]:
    fitted = {**dict(calibration.options.get(segment.compiler, ())), **dict(model.options)}
    estimates = {name: _reference(segment, name, fitted, build, limits) for name in _needed(model, calibration)}
    terms = {name: estimate.latency.typical_s for name, estimate in estimates.items()}
    _refuse_contradicted(segment, terms, fitted, build, limits)
    work = _work(segment, model, estimates, calibration)
    predicted_s = model.predict({**terms, **work})
    first = next(iter(estimates.values()))
    own = model.references == (segment.device.name,)
    uncosted = any(estimate.uncosted_nodes for estimate in estimates.values())
    low_s, high_s = model.bounds_s(predicted_s, uncosted=uncosted)
    latency = Latency(
        typical_s=predicted_s,
        low_s=low_s,
        high_s=high_s,
        source=Source.SIMULATED if own else Source.MODELLED,
    )
    bounds = _compiler_bounds(model, first.latency, work) if own else ""
    lacking = _LACKING if uncosted and model.uncosted_ratios else ""
    return dataclasses.replace(first, latency=latency), _note(segment, model, fitted) + lacking + bounds


def _precision(segment: Segment) -> str:
    """Tell 8 from 16 bits of activations, which a segment's precision does not."""
    if segment.precision != "int8":
        return segment.precision
    wide = any(spec.dtype in _SIXTEEN_BITS for spec in segment.graph.tensors().values())
    return "w8a16" if wide else "int8"


def _needed(model: LatencyModel, calibration: CalibrationSet) -> tuple[str, ...]:
    traffic = any(term == DRAM_BYTES for term, _ in model.coefficients)
    return tuple(dict.fromkeys((*model.references, *((calibration.dram_reference,) if traffic else ()))))


def _reference(segment: Segment, name: str, fitted: Mapping[str, str], build: Path, limits: Limits) -> Estimate:
    """Compile and simulate the segment for a reference device, or take it from the cache."""
    options = {**fitted, **dict(segment.options)}
    device = segment.device if name == segment.device.name else load_device(name)
    there = dataclasses.replace(segment, device=device, options=tuple(sorted(options.items())))
    compiler = get_compiler(there.compiler)
    why_not = compiler.why_not(Action.ESTIMATE, device, there.processor)
    if why_not is not None:
        raise CompilerError(f"no prediction from {name}: {why_not}")
    return compiler.estimate(compile_segment(there, build, limits))


def _refuse_contradicted(
    segment: Segment, simulated_s: Mapping[str, float], fitted: Mapping[str, str], build: Path, limits: Limits
) -> None:
    """Refuse a long time on one generation of silicon that the next contradicts; nothing where that has none."""
    doubtful = {name: time_s for name, time_s in simulated_s.items() if is_doubtful(name, time_s)}
    if not doubtful:
        return
    witness_s = simulated_s.get(WITNESS)
    try:
        witness_s = witness_s or _reference(segment, WITNESS, fitted, build, limits).latency.typical_s
    except PassingError:
        raise  # no word on the graph: whether it is refused must not depend on what else the machine did
    except CompilerError:
        return
    for name, time_s in doubtful.items():
        reason = contradiction(name, time_s, witness_s)
        if reason is not None:
            raise CompilerError(reason)


def _work(
    segment: Segment, model: LatencyModel, estimates: dict[str, Estimate], calibration: CalibrationSet
) -> dict[str, float]:
    work: dict[str, float] = {}
    for term, _ in model.coefficients:
        value = {
            MACS: segment.graph.macs,
            DRAM_BYTES: estimates[calibration.dram_reference].dram_bytes if term == DRAM_BYTES else None,
        }.get(term)
        if term in {MACS, DRAM_BYTES}:
            if value is None:
                raise CompilerError(f"no prediction: the {term} of {segment.graph.name} are not known")
            work[term] = float(value)
    return work


def _compiler_bounds(model: LatencyModel, simulated: Latency, work: dict[str, float]) -> str:
    """Say what the compiler's own bounds of its simulation come to, with the overhead: it knows its operators best."""
    name = model.references[0]
    low, high = (model.predict({**work, name: bound}) for bound in (simulated.low_s, simulated.high_s))
    return f"; the compiler's own bounds come to {seconds(low)} to {seconds(high)}"


def _note(segment: Segment, model: LatencyModel, fitted: Mapping[str, str]) -> str:
    own = dict(segment.options)
    used = ", ".join(f"{key}={value}" for key, value in sorted({**fitted, **own}.items()))
    outside = "" if {**fitted, **own} == fitted else " (the fit was made with other options)"
    by = f"by a fit to {model.models} measured models: on models kept out it is off by"
    if model.lenders:
        by = (
            f"by a borrowed fit to only {model.models} models measured on {model.device} and those of "
            f"{', '.join(model.lenders)}: other chips cut to as few are, on models kept out, off by"
        )
    return (
        f"latency predicted from simulations of {', '.join(model.references)} with {used}{outside} {by} "
        f"{model.error_median:.1%} (median) and {model.error_p90:.1%} (90th percentile), and the interval holds 8 of 10"
    )
