"""Plan -> Evaluation | Failure: measure, simulate or model."""

from experiments.evaluator.energy import Energy, add_energies
from experiments.evaluator.evaluate import (
    NOT_METERED,
    PROVISIONAL,
    Context,
    compile_plan,
    depends_on,
    estimate_segment,
    evaluate,
    handovers,
    is_measured,
    model_energy,
    settings,
)
from experiments.evaluator.fidelity import reference_outputs
from experiments.evaluator.measure import Samples, measure
from experiments.evaluator.power.meter import Meter, find_meter
from experiments.evaluator.values import Evaluation, Failure, Misplacement

__all__ = [
    "NOT_METERED",
    "PROVISIONAL",
    "Context",
    "Energy",
    "Evaluation",
    "Failure",
    "Meter",
    "Misplacement",
    "Samples",
    "add_energies",
    "compile_plan",
    "depends_on",
    "estimate_segment",
    "evaluate",
    "find_meter",
    "handovers",
    "is_measured",
    "measure",
    "model_energy",
    "reference_outputs",
    "settings",
]
