"""Plan -> Evaluation | Failure: measure, simulate or model."""

from experiments.evaluator.energy import Energy
from experiments.evaluator.evaluate import (
    Context,
    compile_plan,
    estimate_segment,
    evaluate,
    handovers,
    is_measured,
)
from experiments.evaluator.fidelity import reference_outputs
from experiments.evaluator.measure import Samples, measure
from experiments.evaluator.values import Evaluation, Failure, Misplacement

__all__ = [
    "Context",
    "Energy",
    "Evaluation",
    "Failure",
    "Misplacement",
    "Samples",
    "compile_plan",
    "estimate_segment",
    "evaluate",
    "handovers",
    "is_measured",
    "measure",
    "reference_outputs",
]
