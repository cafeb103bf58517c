"""Passes of a whole graph's model, fitted to traces of operators between two convolutions: `benchmarks.tiles passes`.

Between convolutions an operator reads and writes blocks, so its tiles in the trace are its own work: what the ends of a
graph cost does not blur them. Half of the sizes of each kind are fitted, the error is that of the other half. The
model's own stages say how many tiles and bytes a pass has: a rate is what the starts leave of the trace's cycles.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.tile_npu import DEVICE, PRECISIONS, read
from graphs import Calibration, Graph, from_proto, quantise
from partition import Segment, load_device
from partition.tile import npu_machine
from partition.tile.stages import MATRIX, VECTOR, works_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from compilers import Trace
    from partition.tile import NpuMachine

NAME: Final = "pass"
CHANNELS: Final = 32
STARTS: Final = range(0, 1001, 50)


class _Builder:
    """A graph from a convolution over a convolution; `y` is what the operator reads."""

    def __init__(self, channels: int, size: int, *, image: int = CHANNELS) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.channels, self.size, self.image = channels, size, image
        self.y = self.conv("x", image, channels, "before")

    def node(self, op_type: str, inputs: Sequence[str], name: str = NAME, **attributes: Any) -> str:  # noqa: ANN401
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}_y"], name=name, **attributes))
        return f"{name}_y"

    def constant(self, value: Any) -> str:  # noqa: ANN401
        self.weights.append(numpy_helper.from_array(np.asarray(value), f"c{len(self.weights)}"))
        return self.weights[-1].name

    def conv(self, x: str, c: int, k: int, name: str = NAME, *, f: int = 1, stride: int = 1, groups: int = 1) -> str:
        values = np.random.default_rng(0).standard_normal((k, c // groups, f, f)).astype(np.float32) * 0.1
        window = {"kernel_shape": [f, f], "strides": [stride, stride], "pads": [f // 2] * 4, "group": groups}
        return self.node("Conv", [x, self.constant(values)], name, **window)

    def beside(self) -> str:
        return self.conv(self.y, self.channels, self.channels, "beside")

    def reshape(self, x: str, shape: Sequence[int], name: str) -> str:
        return self.node("Reshape", [x, self.constant(np.array(shape, np.int64))], name)

    def graph(self, y: str, *, channels: int = 0, size: int = 0) -> Graph:
        """End with another convolution of what the operator left."""
        end = self.conv(y, channels or self.channels, CHANNELS, "after")
        shapes = (("x", self.image, self.size), (end, CHANNELS, size or self.size))
        info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, c, s, s]) for n, c, s in shapes]
        graph = helper.make_graph(self.nodes, "pass", info[:1], info[1:], self.weights)
        return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


# --- one kind each -------------------------------------------------------------------------------------------


def _unary(op_type: str, c: int, s: int) -> Graph:
    b = _Builder(c, s)
    return b.graph(b.node(op_type, [b.y]))


def _clipped(c: int, s: int) -> Graph:
    b = _Builder(c, s)
    return b.graph(b.node("Clip", [b.y, b.constant(np.float32(0)), b.constant(np.float32(6))]))


def _after_sum(op_type: str, c: int, s: int) -> Graph:
    """A function of what no convolution made."""
    b = _Builder(c, s)
    return b.graph(b.node(op_type, [b.node("Mul", [b.y, b.beside()], "product")]))


def _two(op_type: str, c: int, s: int) -> Graph:
    b = _Builder(c, s)
    attributes, wide = ({"axis": 1}, 2 * c) if op_type == "Concat" else ({}, c)
    return b.graph(b.node(op_type, [b.y, b.beside()], **attributes), channels=wide)


def _scaled(c: int, s: int) -> Graph:
    b = _Builder(c, s)
    return b.graph(b.node("Mul", [b.y, b.node("GlobalAveragePool", [b.y], "sum")]))


def _mean(c: int, s: int) -> Graph:
    b = _Builder(c, s)
    return b.graph(b.node("GlobalAveragePool", [b.y]), size=1)


def _window(f: int, stride: int, width: int, c: int, s: int) -> Graph:
    """A convolution of `f` x `f` in groups of `width` channels, all of them if 0."""
    b = _Builder(c, s)
    groups = c // width if width else 1
    return b.graph(b.conv(b.y, c, c, f=f, stride=stride, groups=groups), size=-(-s // stride))


def _groups(c: int, s: int) -> Graph:
    """Groups of 8 channels, put together for what reads them twice, as a squeeze and excite does."""
    b = _Builder(c, s)
    y = b.conv(b.y, c, c, f=3, groups=c // 8)
    return b.graph(b.node("Mul", [y, b.node("GlobalAveragePool", [y], "sum")], "scaled"))


def _normalise(c: int, s: int) -> Graph:
    b = _Builder(c, s)
    last = b.node("Transpose", [b.y], "last", perm=[0, 2, 3, 1])
    scales = [b.constant(np.full(c, value, np.float32)) for value in (1, 0)]
    return b.graph(
        b.node("Transpose", [b.node("LayerNormalization", [last, *scales], axis=-1)], "back", perm=[0, 3, 1, 2])
    )


def _moments(c: int, s: int) -> Graph:
    b = _Builder(c, s)
    flat = b.reshape(b.y, (1, 1, -1), "flat")
    scales = [b.constant(np.full(1, value, np.float32)) for value in (1, 0)]
    return b.graph(b.reshape(b.node("InstanceNormalization", [flat, *scales]), (1, c, s, s), "back"))


def _softmax(c: int, s: int) -> Graph:
    b = _Builder(c, s)
    return b.graph(b.node("Softmax", [b.y], axis=1))


def _pooled(op_type: str, f: int, stride: int, c: int, s: int) -> Graph:
    b = _Builder(c, s)
    pads = [f // 2 if f % 2 else 0] * 4
    y = b.node(op_type, [b.y], kernel_shape=[f, f], strides=[stride, stride], pads=pads)
    return b.graph(y, size=-(-s // stride))


def _of_product(op_type: str, c: int, s: int) -> Graph:
    """A limit, a factor or a normalisation by channel of what no convolution made."""
    b = _Builder(c, s)
    factors = b.constant(np.linspace(0.5, 2, c, dtype=np.float32))
    wide = b.constant(np.linspace(0.5, 2, c, dtype=np.float32).reshape(1, c, 1, 1))
    constants = {"Relu": [], "Mul": [wide], "BatchNormalization": [factors] * 4}[op_type]
    return b.graph(b.node(op_type, [b.node("Mul", [b.y, b.beside()], "product"), *constants]))


def _shuffle(c: int, s: int) -> Graph:
    b = _Builder(c, s)
    apart = b.node("Transpose", [b.reshape(b.y, (1, 2, c // 2, s, s), NAME + "1")], perm=[0, 2, 1, 3, 4])
    return b.graph(b.reshape(apart, (1, c, s, s), NAME + "2"))


def _image(c: int, s: int) -> Graph:
    b = _Builder(c, s, image=3)
    return b.graph(b.y)


_MAPS: Final = ((32, 56), (64, 56), (96, 28), (128, 28), (240, 14), (512, 14), (288, 7), (576, 7))
_ODD: Final = ((48, 56), (72, 28), (104, 28), (208, 14), (240, 14), (440, 7))
_SMALL: Final = ((64, 28), (128, 28), (96, 14), (256, 14), (384, 7), (64, 56))
_STRIDED: Final = ((32, 112), (64, 56), (24, 112), (96, 56), (128, 28), (256, 14))
_IMAGES_OF: Final = ((32, 160), (32, 192), (32, 224), (32, 256))
_POOLED: Final = ((64, 112), (192, 56), (192, 28), (480, 28), (512, 14), (832, 14), (832, 7), (128, 56))
_DEPTHWISE: Final = ((32, 112), (72, 56), (144, 56), (96, 28), (288, 14), (240, 28))
# Kind, precisions, the unit whose work it is, graphs by size, sizes.
KINDS: Final[tuple[tuple[str, tuple[str, ...], str, Callable[[int, int], Graph], tuple[tuple[int, int], ...]], ...]] = (
    ("table", ("int8",), VECTOR, functools.partial(_unary, "HardSigmoid"), _MAPS),
    ("table", ("int8",), VECTOR, functools.partial(_unary, "Sigmoid"), _MAPS[::3]),
    ("table", ("fp16",), VECTOR, functools.partial(_after_sum, "Sigmoid"), _MAPS),
    ("multiply", PRECISIONS, VECTOR, functools.partial(_two, "Mul"), _MAPS),
    ("multiply", PRECISIONS, VECTOR, _scaled, _MAPS[1::2]),
    ("add", ("int8",), VECTOR, functools.partial(_two, "Add"), _MAPS),
    ("mean", PRECISIONS, VECTOR, _mean, _MAPS),
    ("join", PRECISIONS, VECTOR, functools.partial(_two, "Concat"), _ODD[:5]),
    ("copy", PRECISIONS, VECTOR, _groups, _ODD),
    ("strided", PRECISIONS, VECTOR, functools.partial(_window, 3, 2, 0), _STRIDED),
    ("pad", PRECISIONS, VECTOR, functools.partial(_window, 3, 1, 1), ((96, 14), (240, 14), (512, 14), (576, 7))),
    ("window", ("int8",), VECTOR, functools.partial(_window, 3, 2, 1), _DEPTHWISE),
    ("window", ("int8",), VECTOR, functools.partial(_window, 5, 2, 1), _DEPTHWISE[2:]),
    ("pool", PRECISIONS, VECTOR, functools.partial(_pooled, "MaxPool", 3, 2), _POOLED),
    ("pool", PRECISIONS, VECTOR, functools.partial(_pooled, "MaxPool", 3, 1), _POOLED[2:7]),
    ("pool", PRECISIONS, VECTOR, functools.partial(_pooled, "AveragePool", 2, 2), _POOLED[1:7]),
    ("affine", ("fp16",), VECTOR, functools.partial(_of_product, "BatchNormalization"), _MAPS),
    ("limit", ("fp16",), VECTOR, functools.partial(_of_product, "Relu"), _MAPS),
    ("scale", ("fp16",), VECTOR, functools.partial(_of_product, "Mul"), _MAPS),
    ("softmax", PRECISIONS, VECTOR, _softmax, _SMALL),
    ("normalise", PRECISIONS, VECTOR, _normalise, _SMALL),
    ("moments", PRECISIONS, VECTOR, _moments, ((32, 14), (64, 14), (64, 28), (128, 28))),
    ("plain", PRECISIONS, VECTOR, _shuffle, _SMALL),
    ("cast", PRECISIONS, VECTOR, _image, _IMAGES_OF),
    ("block", PRECISIONS, VECTOR, _image, _IMAGES_OF),
    ("exit", PRECISIONS, VECTOR, _image, _IMAGES_OF),
    ("start", PRECISIONS, MATRIX, functools.partial(_window, 1, 1, 0), _MAPS),
    ("start", PRECISIONS, MATRIX, functools.partial(_window, 3, 1, 0), _SMALL),
    ("fused_limit", ("fp16",), MATRIX, _clipped, _MAPS[1::2]),
    ("fused_table", ("fp16",), MATRIX, functools.partial(_unary, "Sigmoid"), _MAPS),
    ("matrix_add", ("fp16",), MATRIX, functools.partial(_two, "Add"), _MAPS),
)  # fmt: skip
# What the compiler calls the passes over a graph's own ends, and those whose node is the one that reads them.
_OPERATIONS: Final = {
    "copy": ("Concat", "SlicePad"),
    "cast": ("Quantize", "Cast_fp32"), "block": ("ForceFormat_Crouton", "Transpose_impl"),
    "exit": ("Dequantize", "Cast_fp16", "*OutputCast"),
}  # fmt: skip


# --- the traces ----------------------------------------------------------------------------------------------


def passes(path: Path, build: Path) -> None:
    """Compile what is not there yet, and print figures and errors."""
    known = {(row["kind"], row["prec"], row["graph"]): row for row in read(path)}
    samples = []
    with path.open("a", encoding="utf-8") as out:
        for kind, precision, unit, title, graph in _cases():
            row = known.get((kind, precision, title))
            if row is None:
                row = {
                    "kind": kind,
                    "prec": precision,
                    "graph": title,
                    **_simulated(kind, precision, unit, graph, build),
                }
                out.write(json.dumps(row) + "\n")
                out.flush()
            if "error" not in row:
                samples.append(row | _modelled(kind, precision, unit, graph))
    _fit(samples)


def _cases() -> Iterator[tuple[str, str, str, str, Graph]]:
    for kind, precisions, unit, make, sizes in KINDS:
        for precision, (channels, size) in itertools.product(precisions, sizes):
            yield kind, precision, unit, f"{_title(make)} {channels}x{size}", make(channels, size)


def _title(make: Callable[[int, int], Graph]) -> str:
    return f"{make.func.__name__}{make.args}" if isinstance(make, functools.partial) else getattr(make, "__name__", "")


def _simulated(kind: str, precision: str, unit: str, graph: Graph, build: Path) -> dict[str, Any]:
    from compilers import CompilerError

    try:
        cycles = _busy(_trace(graph, precision, build), kind, unit)
        if kind.startswith("fused"):
            cycles -= _busy(_trace(_without(graph), precision, build), kind, unit)
    except CompilerError as error:
        return {"error": str(error)}
    return {"cycles": cycles}


def _trace(graph: Graph, precision: str, build: Path) -> Trace:
    from compilers import Limits, compile_segment, get_compiler

    if precision == "int8":
        graph = quantise(graph, "int8", Calibration.random(graph, 2, 0))
    segment = Segment(
        graph=graph, device=load_device(DEVICE), processor="npu", compiler="ort_qnn", precision=precision,
        options=(("vtcm_mb", "8"), ("profiling_level", "optrace")),
    )  # fmt: skip
    return get_compiler("ort_qnn").trace(compile_segment(segment, build, Limits(time_s=120)))


def _without(graph: Graph) -> Graph:
    """Return the two convolutions alone."""
    proto = onnx.ModelProto()
    proto.CopyFrom(graph.proto())
    gone = next(node for node in proto.graph.node if node.name == NAME)
    proto.graph.node.remove(gone)
    for node in proto.graph.node:
        node.input[:] = [gone.input[0] if name == gone.output[0] else name for name in node.input]
    return from_proto(proto)


def _busy(trace: Trace, kind: str, unit: str) -> int:
    """Return the cycles that the unit spends on the pass, all threads together."""
    name = {MATRIX: "hmx", VECTOR: "hvx"}[unit]
    events = [event for event in trace.events if event.unit == name]
    if kind in _OPERATIONS:
        return sum(event.cycles for event in events if event.operation.startswith(_OPERATIONS[kind]))
    if kind.startswith("fused"):
        return sum(event.cycles for event in events)
    return sum(event.cycles for event in events if trace.names.get(event.node, "").startswith(NAME))


def _modelled(kind: str, precision: str, unit: str, graph: Graph) -> dict[str, float]:
    """Return the model's tiles and bytes of the pass, and what the matrix unit computes."""
    machine = npu_machine(load_device(DEVICE), precision)
    rest = dict.fromkeys(dict(machine.passes), 0.0)
    bare = dataclasses.replace(machine, pass_start_cycles=0.0, matrix_start_cycles=0.0, transfer_cycles=0.0)
    per_byte = _totals(dataclasses.replace(bare, passes=tuple((rest | {kind: 1.0}).items())), unit, graph)
    none = _totals(dataclasses.replace(bare, passes=tuple(rest.items())), unit, graph)
    starts = dataclasses.replace(bare, pass_start_cycles=1.0, matrix_start_cycles=1.0, passes=tuple(rest.items()))
    return {"tiles": round(_totals(starts, unit, graph) - none), "nbytes": per_byte - none, "compute": none}


def _totals(machine: NpuMachine, unit: str, graph: Graph) -> float:
    works, _ = works_of(graph, machine)
    named = {output for node in graph.nodes() if node.name.startswith(NAME) for output in node.outputs}
    ends = {spec.name for spec in graph.outputs()}
    own = [work for work in works if named.intersection(work.outputs)]
    own = own or [work for work in works if "x" in work.inputs or ends.intersection(work.outputs)]
    return sum(stage.tiles * stage.cycles for work in own for stage in work.stages if stage.unit == unit)


# --- the fit -------------------------------------------------------------------------------------------------


def _fit(rows: Sequence[Mapping[str, Any]]) -> None:
    """Fit the rates by kind and precision, and one start for both: a thread does not know what it computes."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["cycles"] > 0:
            groups.setdefault((row["prec"], row["kind"]), []).append(row)
    for precision in PRECISIONS:
        matrix = groups.pop((precision, "start"))
        start = float(np.median([(row["cycles"] - row["compute"]) / row["tiles"] for row in matrix[::2]]))
        error = [abs((row["compute"] + max(start, 0.0) * row["tiles"]) / row["cycles"] - 1) for row in matrix[1::2]]
        print(
            f"{precision} matrix_start_cycles {start:.4g}: error on {len(error)} others {100 * np.median(error):.0f} %"
        )
    found = {begin: {group: _rate(samples, begin) for group, samples in groups.items()} for begin in STARTS}
    best = min(found, key=lambda begin: float(np.mean([error for _, error, _ in found[begin].values()])))
    print(f"pass_start_cycles {best}")
    for (precision, kind), (rate, _, unseen) in found[best].items():
        others = len(groups[precision, kind]) // 2
        print(f"{precision}.{kind}: {1 / rate:.4g} bytes a cycle; error on {others} others {100 * unseen:.0f} %")
    errors = [unseen for _, _, unseen in found[best].values()]
    print(f"median of the {len(errors)} errors {100 * float(np.median(errors)):.0f} %")


def _rate(samples: Sequence[Mapping[str, Any]], start: float) -> tuple[float, float, float]:
    """Return the rate of the even samples, their median error, and that of the odd ones."""
    starts = 0.0 if samples[0]["kind"].startswith(("fused", "matrix")) else start
    left = [(row["cycles"] - starts * row["tiles"]) / row["nbytes"] for row in samples[::2]]
    rate = max(float(np.median(left)), 1e-4)
    errors = [abs((starts * row["tiles"] + rate * row["nbytes"]) / row["cycles"] - 1) for row in samples]
    return rate, float(np.median(errors[::2])), float(np.median(errors[1::2]))
