"""The ONNX operator suite (`onnx.backend.test`) as cases, and the verdict on what a backend makes of one.

A case runs as it is, and, when that is refused, again with every input but the first, then but the last, turned into
a constant, as exported models have them. It is wrong when nothing complains and the outputs are not the expected
ones: that must never happen.
"""

from __future__ import annotations

import dataclasses
import enum
import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compilers.adapter import CompilerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import onnx

    Array = np.ndarray[Any, Any]
    Runner = Callable[[onnx.ModelProto, Sequence[Array]], Sequence[Array]]

# ONNX Runtime, our oracle for interpolation, differs from the ONNX reference here.
DISAGREEMENTS: Final = frozenset(
    {"test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners"}
)

# Relative and absolute. float16 has steps of 1e-3; a definition of several operators rounds a few times.
_TOLERANCE: Final = {"float16": (4e-3, 5e-4)}
_USUAL_TOLERANCE: Final = (1e-3, 1e-5)


class Verdict(enum.StrEnum):
    """What became of a case."""

    OK = "ok"
    REFUSED = "refused"
    WRONG = "wrong"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A case with its verdict and, when it is not ok, the reason."""

    name: str
    operator: str
    verdict: Verdict
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One case: a model and the arrays it maps to each other."""

    name: str
    model: onnx.ModelProto
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]

    @property
    def operator(self) -> str:
        """The operator that the case is about."""
        return str(self.model.graph.node[0].op_type)

    def outcome(self, verdict: Verdict, reason: str = "") -> Outcome:
        """Return the case with its verdict."""
        return Outcome(name=self.name, operator=self.operator, verdict=verdict, reason=reason)


def tensor_cases() -> Iterator[Case]:
    """Yield the cases that map tensors to tensors, in order of their names."""
    from onnx.backend.test.case import node as node_cases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = node_cases.collect_testcases(None)
    for case in sorted(found, key=lambda c: str(c.name)):
        assert case.model is not None, "node cases carry their model and data"
        assert case.data_sets is not None, "node cases carry their model and data"
        inputs, outputs = case.data_sets[0]
        if inputs and all(isinstance(a, np.ndarray | np.generic) for a in (*inputs, *outputs)):
            arrays = (tuple(np.asarray(a) for a in side) for side in (inputs, outputs))
            yield Case(**dict(zip(("inputs", "outputs"), arrays, strict=True)), name=case.name, model=case.model)


def judge(case: Case, run: Runner) -> Outcome:
    """Run one case, as it is or with constants, and compare; `run` raises CompilerError to refuse."""
    reasons = []
    for kept in dict.fromkeys((range(len(case.inputs)), range(1), range(len(case.inputs) - 1, len(case.inputs)))):
        try:
            results = run(with_constants(case.model, case.inputs, kept), case.inputs[kept.start : kept.stop])
        except CompilerError as refused:
            reasons.append(refused.reason)
            continue
        mismatch = _mismatch(results, case.outputs)
        return case.outcome(Verdict.WRONG if mismatch else Verdict.OK, mismatch)
    return case.outcome(Verdict.REFUSED, reasons[:2][-1])


def with_constants(model: onnx.ModelProto, inputs: Sequence[Array], kept: range) -> onnx.ModelProto:
    """Return a copy whose inputs but those at `kept` are initialisers with these values."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    declared = list(copy.graph.input)
    del copy.graph.input[:]
    copy.graph.input.extend(declared[i] for i in kept)
    for index in sorted(set(range(len(inputs))) - set(kept)):
        copy.graph.initializer.append(onnx.numpy_helper.from_array(inputs[index], declared[index].name))
    return copy


def _mismatch(got: Sequence[Array], wanted: Sequence[Array]) -> str:
    for index, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {index} is {a.dtype}{a.shape}, not {b.dtype}{b.shape}"
        if b.dtype.kind != "f":
            if not np.array_equal(a, b):
                return f"output {index} differs in {int(np.sum(a != b))} elements"
            continue
        relative, absolute = _TOLERANCE.get(str(b.dtype), _USUAL_TOLERANCE)
        if not np.allclose(a.astype(float), b.astype(float), rtol=relative, atol=absolute, equal_nan=True):
            return f"output {index} differs by {np.nanmax(np.abs(a.astype(float) - b.astype(float))):.3g}"
    return ""
