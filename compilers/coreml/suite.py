"""The ONNX operator suite through lowering, package, reader and executor: ok, refused or wrong.

Each case of `onnx.backend.test` runs as it is, and, when that is refused, again with every input but the first, then
but the last, turned into a constant, as exported models have them. A case is wrong when it converts and its outputs
differ from the expected ones: that must never happen, save for the named disagreements of ONNX Runtime with ONNX.
"""

from __future__ import annotations

import dataclasses
import enum
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compilers.adapter import CompilerError
from compilers.coreml.lower import TABLE, lower
from compilers.coreml.lower.control import CONTROL
from compilers.coreml.lower.functions import FOLDED_ONLY, has_definition
from compilers.coreml.session import EmulatedSession
from compilers.coreml.write import write_package

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import onnx

Array = np.ndarray[Any, Any]

# ONNX Runtime, our oracle for interpolation, differs from the ONNX reference here.
DISAGREEMENTS: Final = frozenset(
    {"test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners"}
)


# float16 has steps of 1e-3; a definition of several operators rounds a few times.
_TOLERANCE: Final = {"float32": 1e-3, "float16": 4e-3}


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


def claimed_cases() -> Iterator[Case]:
    """Yield the tensor cases all of whose operators have a lowering, in order of their names."""
    from onnx.backend.test.case import node as node_cases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = node_cases.collect_testcases(None)
    for case in sorted(found, key=lambda c: str(c.name)):
        assert case.model is not None, "node cases carry their model and data"
        assert case.data_sets is not None, "node cases carry their model and data"
        inputs, outputs = case.data_sets[0]
        tensors = all(isinstance(a, np.ndarray | np.generic) for a in (*inputs, *outputs))
        if tensors and inputs and _is_claimed(case.model):
            arrays = (tuple(np.asarray(a) for a in side) for side in (inputs, outputs))
            yield Case(**dict(zip(("inputs", "outputs"), arrays, strict=True)), name=case.name, model=case.model)


def _is_claimed(model: onnx.ModelProto) -> bool:
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)
    return not model.functions and all(
        n.op_type in FOLDED_ONLY | CONTROL
        or (n.op_type if n.domain in ("", "ai.onnx") else f"{n.domain}::{n.op_type}") in TABLE
        or has_definition(n.op_type, n.domain, opset)
        for n in model.graph.node
    )


def judge(case: Case, folder: Path | None = None) -> Outcome:
    """Convert and run one case and compare."""
    if folder is None:
        with tempfile.TemporaryDirectory() as scratch:
            return judge(case, Path(scratch))
    reasons = []
    for kept in dict.fromkeys((range(len(case.inputs)), range(1), range(len(case.inputs) - 1, len(case.inputs)))):
        inputs = case.inputs[kept.start : kept.stop]
        try:
            results = convert_and_run(with_constants(case.model, case.inputs, kept), inputs, folder)
        except CompilerError as refused:
            reasons.append(refused.reason)
            continue
        mismatch = _mismatch(results, case.outputs)
        return _outcome(case, Verdict.WRONG if mismatch else Verdict.OK, mismatch)
    return _outcome(case, Verdict.REFUSED, reasons[:2][-1])


def _outcome(case: Case, verdict: Verdict, reason: str) -> Outcome:
    return Outcome(name=case.name, operator=case.operator, verdict=verdict, reason=reason)


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


def convert_and_run(
    model: onnx.ModelProto, inputs: Sequence[Array], folder: Path, *, target: str = "iOS17", compute: str = "fp32"
) -> list[Array]:
    """Lower, write, read back and run a model on these inputs; return the outputs in the graph's order.

    Raises:
        CompilerError: the model is refused.
    """
    import onnx

    shaped = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for index, node in enumerate(shaped.graph.node):
        node.name = node.name or f"{node.op_type}_{index}"
    package = folder / "model.mlpackage"
    write_package(lower(shaped, target), package, target=target, compute=compute)
    names = [info.name for info in shaped.graph.input]
    results = EmulatedSession(package).run(dict(zip(names, inputs, strict=True)))
    return [results[info.name] for info in shaped.graph.output]


def _mismatch(got: Sequence[Array], wanted: Sequence[Array]) -> str:
    for index, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {index} is {a.dtype}{a.shape}, not {b.dtype}{b.shape}"
        if b.dtype.kind != "f":
            if not np.array_equal(a, b):
                return f"output {index} differs in {int(np.sum(a != b))} elements"
        elif not np.allclose(
            a.astype(float), b.astype(float), rtol=_TOLERANCE[str(b.dtype)], atol=1e-5, equal_nan=True
        ):
            return f"output {index} differs by {np.nanmax(np.abs(a.astype(float) - b.astype(float))):.3g}"
    return ""
