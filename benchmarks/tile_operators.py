"""One layer as an ONNX model by itself, channels last: uint8 at both ends, or float32 computed in fp16.

So the compiler's time for it is the layer's own, plus what bringing plain rows into its blocked layout costs. Not
float16 at the ends: the simulator reads such an input at 86 bytes a cycle, where its own DRAM has 31, and writes
such an output at 0.3 to 6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from graphs import Graph, from_proto

if TYPE_CHECKING:
    from partition.tile import Layer

SCALE, ZERO = np.float32(0.05), np.uint8(128)


def operator_graph(layer: Layer, precision: str) -> Graph:
    """Return the layer as a graph for "int8" (QDQ, uint8 at both ends) or "fp16" (float32, computed in fp16)."""
    build = _Builder(layer, quantised=precision == "int8")
    return from_proto(build.model(), name=f"tile-{abs(hash(layer.signature)):x}"[:24])


class _Builder:
    def __init__(self, layer: Layer, *, quantised: bool) -> None:
        self.layer, self.quantised = layer, quantised
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.type = TensorProto.UINT8 if quantised else TensorProto.FLOAT
        if quantised:
            self.constant("scale", SCALE)
            self.constant("zero", ZERO)

    def constant(self, name: str, value: object) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op_type: str, inputs: list[str], output: str, **attributes: object) -> str:
        name = (
            "layer" if op_type in ("Conv", "MatMul", "MaxPool", "AveragePool", "Softmax", "LayerNormalization") else ""
        )
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=name or output, **attributes))
        return output

    def dequantised(self, tensor: str) -> str:
        return self.node("DequantizeLinear", [tensor, "scale", "zero"], f"{tensor}_f") if self.quantised else tensor

    def requantised(self, tensor: str) -> str:
        if not self.quantised:
            return tensor
        return self.dequantised(self.node("QuantizeLinear", [tensor, "scale", "zero"], f"{tensor}_q"))

    def weight(self, shape: tuple[int, ...]) -> str:
        random = np.random.default_rng(0)
        if not self.quantised:
            return self.constant("w", (random.standard_normal(shape) * 0.1).astype(np.float32))
        self.constant("w", random.integers(-127, 127, shape).astype(np.int8))
        self.constant("w_scale", np.float32(0.01))
        self.constant("w_zero", np.int8(0))
        return self.node("DequantizeLinear", ["w", "w_scale", "w_zero"], "w_f")

    def model(self) -> onnx.ModelProto:
        layer = self.layer
        rank4 = layer.kind not in ("matmul", "norm")
        if rank4:
            shape = [layer.batch, layer.in_y, layer.in_x, layer.in_channels]
            out = [layer.batch, layer.y, layer.x, layer.groups * layer.k]
        else:
            shape = [layer.groups, layer.x, layer.c if layer.kind == "matmul" else layer.k]
            out = [layer.groups, layer.x, layer.k]
        value = self.dequantised("x")
        if rank4:
            value = self.requantised(self.node("Transpose", [value], "x_nchw", perm=[0, 3, 1, 2]))
        value = self.requantised(self.operation(value))
        if rank4:
            value = self.node("Transpose", [value], "y_nhwc", perm=[0, 2, 3, 1])
        if self.quantised:
            self.node("QuantizeLinear", [value, "scale", "zero"], "y")
        else:
            self.node("Identity", [value], "y")
        info = [helper.make_tensor_value_info(name, self.type, dims) for name, dims in (("x", shape), ("y", out))]
        graph = helper.make_graph(self.nodes, "tile", info[:1], info[1:], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

    def operation(self, value: str) -> str:
        layer = self.layer
        if layer.kind in ("conv", "depthwise"):
            groups = layer.k if layer.kind == "depthwise" else layer.groups
            shape = (layer.groups * layer.k, layer.c, *layer.kernel)
            return self.node(
                "Conv", [value, self.weight(shape)], "y_op", group=groups, kernel_shape=layer.kernel,
                pads=layer.all_pads, strides=layer.stride, dilations=layer.dilation,
            )  # fmt: skip
        if layer.kind == "matmul":
            shape = (layer.groups, layer.c, layer.k) if layer.groups > 1 else (layer.c, layer.k)
            return self.node("MatMul", [value, self.weight(shape)], "y_op")
        if layer.kind == "pool":
            window = {"kernel_shape": layer.kernel, "strides": layer.stride, "pads": layer.all_pads}
            return self.node(layer.op_type, [value], "y_op", **window)
        return self.node("Softmax", [value], "y_op", axis=-1)
