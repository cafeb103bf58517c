"""Why a prediction misses: what the table and the simulation themselves show, and nothing beyond it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.calibration.features import Sizes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from experiments.calibration.features import Simulation
    from experiments.calibration.table import Measurement
    from experiments.calibration.validation import Prediction

_MORE_LAYERS: Final = 1.1
_AGREES: Final = 0.1
_MISSES: Final = 0.15
_OTHER_DEVICES: Final = 3
_Case = tuple[str, str, str, int]  # model, precision, compiler and size of the VTCM in the simulations


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What reasons are drawn from: all rows of the table, all simulations and all predictions."""

    rows: Mapping[tuple[str, str, str, str], Measurement]
    uncosted: Mapping[_Case, int]
    refusals: Mapping[_Case, str]
    sizes: Sizes
    predictions: Mapping[tuple[str, str, str, str], Prediction]

    @classmethod
    def of(
        cls, rows: Iterable[Measurement], simulations: Iterable[Simulation], predictions: Iterable[Prediction]
    ) -> Evidence:
        """Index the evidence."""
        uncosted: dict[_Case, int] = {}
        refusals: dict[_Case, str] = {}
        known = tuple(simulations)
        for s in known:
            case = s.model, s.precision, s.compiler, s.vtcm_mb
            uncosted[case] = max(uncosted.get(case, 0), s.uncosted)
            if s.refusal:
                refusals[case] = f"{s.chip}: {s.refusal}"
        by_row = {p.row.key: p for p in predictions}
        return cls({row.key: row for row in rows}, uncosted, refusals, Sizes(known), by_row)


def worst(predictions: Sequence[Prediction], count: int) -> tuple[Prediction, ...]:
    """Return the predictions with the largest errors, one per model, precision and backend: the worst device's."""
    found: dict[tuple[str, str, str], Prediction] = {}
    for p in sorted(predictions, key=lambda p: -abs(p.error_ratio)):
        found.setdefault((p.row.model, p.row.precision, p.row.compiler), p)
    return tuple(found.values())[:count]


def reason(prediction: Prediction, evidence: Evidence) -> str:
    """Say what is known about a miss; "not explained" when neither table nor simulation shows a cause."""
    found = filter(
        None, (look(prediction, evidence) for look in (_quantiser, _slower, _uncosted, _refused, _runtime, _devices))
    )
    return "; ".join(found) or "not explained by the table or the simulation"


def _quantiser(prediction: Prediction, evidence: Evidence) -> str | None:
    """Compare the layers of the measured quantised graph with those of its own float graph."""
    row, plain = prediction.row, _float_row(prediction.row, evidence)
    if plain is None or not plain.npu_layers or row.npu_layers < _MORE_LAYERS * plain.npu_layers:
        return None
    return (
        f"quantisation difference: the measured graph has {row.npu_layers} layers, in float {plain.npu_layers}, "
        "where ours has fewer than in float"
    )


def _slower(prediction: Prediction, evidence: Evidence) -> str | None:
    plain = _float_row(prediction.row, evidence)
    if plain is None or prediction.row.latency_s <= plain.latency_s:
        return None
    return f"measured {prediction.row.latency_s / plain.latency_s:.2f} times as long as its own float graph"


def _uncosted(prediction: Prediction, evidence: Evidence) -> str | None:
    count = evidence.uncosted.get(_case(prediction.row, evidence), 0)
    return f"{count} nodes have no cost in a simulation" if count else None


def _refused(prediction: Prediction, evidence: Evidence) -> str | None:
    """Give the refusal of a reference chip, without which the prediction came from fewer of them."""
    return evidence.refusals.get(_case(prediction.row, evidence))


def _runtime(prediction: Prediction, evidence: Evidence) -> str | None:
    """Tell whether the same chip's other runtime, with other layout and converter, is predicted well."""
    row = prediction.row
    others = [
        p
        for p in evidence.predictions.values()
        if (p.row.model, p.row.precision, p.row.device) == (row.model, row.precision, row.device)
        and p.row.compiler != row.compiler
    ]
    if others and abs(others[0].error_ratio) < _AGREES:
        return f"its other runtime is off by {others[0].error_ratio:+.0%} only: converter or layout, not the network"
    return None


def _devices(prediction: Prediction, evidence: Evidence) -> str | None:
    """Tell a miss of the graph or the simulator from one of the device."""
    row = prediction.row
    same = (row.model, row.precision, row.compiler)
    errors = np.array(
        [
            p.error_ratio
            for p in evidence.predictions.values()
            if (p.row.model, p.row.precision, p.row.compiler) == same and p.row.device != row.device
        ]
    )
    if len(errors) < _OTHER_DEVICES:
        return None
    alike = int(np.sum((np.sign(errors) == np.sign(prediction.error_ratio)) & (np.abs(errors) > _MISSES)))
    if alike >= 0.7 * len(errors):
        return f"{alike} of {len(errors)} other devices miss the same way: another graph than ours, or the simulator"
    if alike <= 0.3 * len(errors):
        return f"only {alike} of {len(errors)} other devices miss like this: peculiar to this device"
    return None


def _case(row: Measurement, evidence: Evidence) -> _Case:
    return row.model, row.precision, row.compiler, evidence.sizes.of(row)


def _float_row(row: Measurement, evidence: Evidence) -> Measurement | None:
    if row.precision == "fp16":
        return None
    return evidence.rows.get((row.model, "fp16", row.device, row.compiler))
