"""A lint for the Neural Engine: what its public rules say about a program. A prediction, never a placement.

Core ML decides on the device, per chip and system version, and tells only there (`compilers/coreml/mac.py`). Each
rule here names its source. Some are old or second hand; all are worth a look before a model is put on a phone.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compilers.coreml.package import Ref
from compilers.coreml.write import NODES_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from compilers.coreml.package import Operation, Program, Tensor

Array = np.ndarray[Any, Any]


class Severity(enum.StrEnum):
    """What a rule predicts."""

    LEAVES = "leaves the Neural Engine"
    SLOW = "stays, and costs more"
    CARE = "stays, and may surprise"
    ADVICE = "stays, and has a better form"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """One operation with the shapes and constants of its arguments."""

    operation: Operation
    tensors: Mapping[str, Tensor]
    constants: Mapping[str, Array | str]
    producers: Mapping[str, str]

    @property
    def type(self) -> str:
        """The MIL operation."""
        return self.operation.type

    def name(self, key: str) -> str | None:
        """Return the tensor that an argument names."""
        bound = self.operation.inputs.get(key, (None,))[0]
        return str(bound) if isinstance(bound, Ref) else None

    def shape(self, key: str) -> tuple[int, ...]:
        """Return an argument's shape; () when it is absent."""
        name = self.name(key)
        return self.tensors[name].shape if name is not None and name in self.tensors else ()

    def ints(self, key: str) -> tuple[int, ...]:
        """Return a constant argument as integers; () when it is absent or computed."""
        bound = self.operation.inputs.get(key, (None,))[0]
        value = self.constants.get(str(bound)) if isinstance(bound, Ref) else bound
        return tuple(int(v) for v in np.asarray(value).reshape(-1)) if value is not None else ()

    def operands(self) -> Iterator[Tensor]:
        """Yield the tensors that the operation reads and writes, constants aside."""
        for bound in itertools.chain(*self.operation.inputs.values()):
            if isinstance(bound, Ref) and bound in self.tensors and bound not in self.constants:
                yield self.tensors[bound]
        yield from self.operation.outputs


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A statement about the engine, where it comes from, and what to do about it."""

    name: str
    severity: Severity
    source: str
    rewrite: str
    check: Callable[[View], str | None]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A rule that an operation meets; `node` is the ONNX node, "" when the operation cannot be traced back."""

    rule: Rule
    operation: str
    type: str
    node: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All findings of a program, and what leaves the engine by count, by MACs and in parts."""

    findings: tuple[Finding, ...]
    operations: int
    leaving: int
    macs: int
    leaving_macs: int
    parts: int

    def summary(self) -> str:
        """Return one line that says what it is: a prediction."""
        share = self.leaving_macs / self.macs if self.macs else 0.0
        return (
            f"predicted, not observed: {self.leaving} of {self.operations} operations and {share:.1%} of the MACs "
            f"leave the Neural Engine, {self.parts} part{'s' * (self.parts != 1)}"
        )

    def by_rule(self) -> dict[str, tuple[Finding, ...]]:
        """Group the findings by rule, in the order of the rules."""
        groups = {rule.name: tuple(f for f in self.findings if f.rule is rule) for rule in RULES}
        return {name: found for name, found in groups.items() if found}


# -- the rules ---------------------------------------------------------------------------------------------------

_APPLE: Final = "Apple, apple/coreai-models, neural_engine_rules.md (2026)"
_APPLE_TRANSFORMERS: Final = "Apple, machinelearning.apple.com/research/neural-engine-transformers"
_HOLLANCE: Final = "hollance/neural-engine, unsupported-layers.md (old, guesses by its own account)"

_MAX_DIMENSION: Final = 16384
_MAX_RANK: Final = 5
_HALF_MAX: Final = 65504.0
_OLD_POOL_KERNEL: Final = 13


def _float32(view: View) -> str | None:
    if view.type in ("cast", "identity") or not any(t.dtype == "float32" for t in view.operation.outputs):
        return None
    return "computes in float32"


def _rank(view: View) -> str | None:
    worst = max((len(t.shape) for t in view.operands()), default=0)
    return f"has a tensor of rank {worst}" if worst > _MAX_RANK else None


def _dimension(view: View) -> str | None:
    worst = max((n for t in view.operands() for n in t.shape), default=0)
    return f"has an axis of {worst}" if worst > _MAX_DIMENSION else None


def _gather(view: View) -> str | None:
    return "gathers by index" if view.type.startswith("gather") else None


def _recurrent(view: View) -> str | None:
    return "is recurrent" if view.type in ("lstm", "gru", "rnn") else None


def _stride(view: View) -> str | None:
    strides = view.ints("strides") if view.type in _SLIDING else ()
    bad = [s for s in strides if _without(s, 2, 3) != 1]
    return f"has stride {bad[0]}" if bad else None


_POOLS: Final = ("max_pool", "avg_pool", "l2_pool")
_SLIDING: Final = ("conv", "conv_transpose", *_POOLS)


def _without(number: int, *primes: int) -> int:
    for prime in primes:
        while number % prime == 0:
            number //= prime
    return number


def _palettised_stride(view: View) -> str | None:
    if view.type != "conv" or view.producers.get(view.name("weight") or "") != "constexpr_lut_to_dense":
        return None
    worst = max(view.ints("strides"), default=1)
    return f"has palettised weights and stride {worst}" if worst > 2 else None


def _computed_weight(view: View) -> str | None:
    name = view.name("weight") if view.type in ("conv", "conv_transpose") else None
    if name is None or name in view.constants or view.producers.get(name, "").startswith("constexpr_"):
        return None
    return f"convolves with the computed tensor {name}"


def _dilation(view: View) -> str | None:
    worst = max(view.ints("dilations"), default=1) if view.type == "conv" else 1
    return f"has dilation {worst}" if worst > 2 else None


def _pool_stride(view: View) -> str | None:
    bad = [s for s in view.ints("strides") if s not in (1, 2, 4)] if view.type in _POOLS else []
    return f"pools with stride {bad[0]}" if bad else None


def _pool_kernel(view: View) -> str | None:
    worst = max(view.ints("kernel_sizes"), default=0) if view.type in _POOLS else 0
    return f"pools over {worst}" if worst > _OLD_POOL_KERNEL else None


def _infinity(view: View) -> str | None:
    for bound in itertools.chain(*view.operation.inputs.values()):
        value = view.constants.get(bound) if isinstance(bound, Ref) else bound
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size:
            least = float(np.min(value))
            if least <= -_HALF_MAX:
                return f"has the constant {least:g}, which fp16 arithmetic turns into -inf"
    return None


def _linear(view: View) -> str | None:
    return "is a matrix product with constant weights" if view.type == "linear" else None


def _softmax_axis(view: View) -> str | None:
    rank = len(view.shape("x"))
    axes = [a % rank for a in view.ints("axis")] if view.type == "softmax" and rank == 4 else []
    return f"normalises over axis {axes[0]}" if axes and axes[0] != 1 else None


def _flat_sequence(view: View) -> str | None:
    if view.type not in ("linear", "layer_norm", "matmul") or len(view.shape("x")) != 3:
        return None
    return f"works on {view.shape('x')}"


RULES: Final = (
    Rule(
        name="float32",
        severity=Severity.LEAVES,
        source=f"{_APPLE}; hollance/neural-engine, 16-bit.md",
        rewrite="compile with precision fp16 or int8",
        check=_float32,
    ),
    Rule(
        name="rank",
        severity=Severity.LEAVES,
        source=f"{_APPLE}; onnxruntime #14212",
        rewrite="reshape to rank 4, (batch, channels, 1, sequence)",
        check=_rank,
    ),
    Rule(
        name="dimension",
        severity=Severity.LEAVES,
        source="coremltools #1003; onnxruntime #19543: no dimension above 16384",
        rewrite="split the axis, or reshape so that none is longer than 16384",
        check=_dimension,
    ),
    Rule(
        name="gather",
        severity=Severity.LEAVES,
        source="WhisperKit's published MLComputePlan dumps (gather on the CPU only); " + _HOLLANCE,
        rewrite="take fixed parts with slice or split; put embeddings first, in a segment for the CPU",
        check=_gather,
    ),
    Rule(
        name="recurrent",
        severity=Severity.LEAVES,
        source=_HOLLANCE,
        rewrite="cut the graph here and give this segment to the CPU",
        check=_recurrent,
    ),
    Rule(
        name="stride",
        severity=Severity.LEAVES,
        source=_APPLE,
        rewrite="use strides whose only prime factors are 2 and 3",
        check=_stride,
    ),
    Rule(
        name="palettised stride",
        severity=Severity.LEAVES,
        source=_APPLE,
        rewrite="keep this layer's weights linear (w8), or its stride at 2 at most",
        check=_palettised_stride,
    ),
    Rule(
        name="computed weight",
        severity=Severity.LEAVES,
        source="Orion, arXiv 2603.06728: the engine's programs have their weights built in (a heuristic)",
        rewrite="make the weights constant, or use matmul for a product of activations",
        check=_computed_weight,
    ),
    Rule(
        name="dilation",
        severity=Severity.SLOW,
        source=_APPLE,
        rewrite="use dilation 1 or 2, or two strided branches",
        check=_dilation,
    ),
    Rule(
        name="pool stride",
        severity=Severity.SLOW,
        source=_APPLE,
        rewrite="pool with stride 2 or 4",
        check=_pool_stride,
    ),
    Rule(
        name="pool kernel",
        severity=Severity.SLOW,
        source=_HOLLANCE,
        rewrite="pool in two steps, or use reduce_mean for the whole image",
        check=_pool_kernel,
    ),
    Rule(
        name="minus infinity",
        severity=Severity.CARE,
        source=f"{_APPLE}; coremltools PR #2669",
        rewrite="mask with -40000",
        check=_infinity,
    ),
    Rule(
        name="linear",
        severity=Severity.ADVICE,
        source=f"{_APPLE}; {_APPLE_TRANSFORMERS}",
        rewrite="write Gemm and MatMul with constant weights as a 1x1 convolution on (batch, channels, 1, sequence)",
        check=_linear,
    ),
    Rule(
        name="softmax axis",
        severity=Severity.ADVICE,
        source=_APPLE,
        rewrite="put the axis of the softmax on the channels (axis 1 of 4)",
        check=_softmax_axis,
    ),
    Rule(
        name="flat sequence",
        severity=Severity.ADVICE,
        source=_APPLE_TRANSFORMERS,
        rewrite="keep sequences as (batch, channels, 1, sequence)",
        check=_flat_sequence,
    ),
)

_BORDER_SOURCE: Final = f"{_APPLE}; {_APPLE_TRANSFORMERS}"
PADDING: Final = Rule(
    name="padded border",
    severity=Severity.CARE,
    source=_BORDER_SOURCE,
    rewrite="move a longer axis to the end of the model's inputs and outputs",
    check=lambda _: None,
)


# -- the report --------------------------------------------------------------------------------------------------


def lint(program: Program) -> Report:
    """Hold every operation of a saved program against the rules."""
    views = list(_views(program))
    nodes = json.loads(program.metadata.get(NODES_KEY, "{}"))
    findings = [finding for view in views for finding in _findings(view, nodes)]
    gone = {f.operation for f in findings if f.rule.severity is Severity.LEAVES}
    macs = {view.operation.name: macs_of(view) for view in views}
    sides = [view.operation.name in gone for view in views]
    return Report(
        findings=(*findings, *_border(program)),
        operations=len(views),
        leaving=len(gone),
        macs=sum(macs.values()),
        leaving_macs=sum(macs[name] for name in gone),
        parts=len(list(itertools.groupby(sides))),
    )


def _views(program: Program) -> Iterator[View]:
    tensors = {t.name: t for t in program.inputs}
    tensors |= {t.name: t for o in program.operations for t in o.outputs}
    constants = {o.outputs[0].name: o.value for o in program.operations if o.type == "const" and o.value is not None}
    producers = {t.name: o.type for o in program.operations for t in o.outputs}
    for operation in program.operations:
        if operation.type != "const" and not operation.type.startswith("constexpr_"):
            yield View(operation=operation, tensors=tensors, constants=constants, producers=producers)


def _findings(view: View, nodes: Mapping[str, str]) -> Iterator[Finding]:
    for rule in RULES:
        reason = rule.check(view)
        if reason is not None:
            name = view.operation.name
            yield Finding(rule=rule, operation=name, type=view.type, node=_node(name, nodes), reason=reason)


def node_of(operation: str, program: Program) -> str:
    """Return the ONNX node that an operation of a package of ours comes from, or ""."""
    return _node(operation, json.loads(program.metadata.get(NODES_KEY, "{}")))


def _node(operation: str, nodes: Mapping[str, str]) -> str:
    """Return the ONNX node of an operation: coremltools' passes append to names."""
    while operation:
        if operation in nodes:
            return nodes[operation]
        operation = operation.rpartition("_")[0]
    return ""


def _border(program: Program) -> Iterator[Finding]:
    """Flag inputs and outputs of one element along their last axis: rows are padded to 64 bytes."""
    tensors = {t.name: t for t in program.inputs} | {t.name: t for o in program.operations for t in o.outputs}
    for name in (*(t.name for t in program.inputs), *program.outputs):
        tensor = tensors[name]
        if len(tensor.shape) > 1 and tensor.shape[-1] == 1:
            factor = 64 // np.dtype(tensor.dtype).itemsize
            reason = f"has shape {tensor.shape}: rows padded to 64 bytes take {factor} times the memory"
            yield Finding(rule=PADDING, operation=name, type="input or output", node="", reason=reason)


def macs_of(view: View) -> int:
    """Count the multiply-accumulates of a convolution or a matrix product; 0 for the rest."""
    output = math.prod(view.operation.outputs[0].shape) if view.operation.outputs else 0
    if view.type == "conv":
        return output * math.prod(view.shape("weight")[1:])
    if view.type == "conv_transpose":
        return math.prod(view.shape("x")) * math.prod(view.shape("weight")[1:])
    if view.type == "linear":
        return output * view.shape("x")[-1]
    if view.type == "matmul":
        return output * view.shape("x")[-2 if any(view.ints("transpose_x")) else -1]
    return 0
