"""One operator as a model by itself, with random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from graphs.onnx_io import from_proto

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphs.graph import Graph

NODE: Final = "layer"
"""The name of the node."""
_SCALE: Final = 0.1


def single(op_type: str, shape: Sequence[int], weights: Sequence[Sequence[int]] = (), **attributes: Any) -> Graph:  # noqa: ANN401
    """Return the operator on one float input of that shape; `weights` are the shapes of what else it takes."""
    random = np.random.default_rng(0)
    names = [f"w{i}" for i in range(len(weights))]
    values = [
        numpy_helper.from_array((random.standard_normal(size) * _SCALE).astype(np.float32), name)
        for name, size in zip(names, weights, strict=True)
    ]
    node = helper.make_node(op_type, ["x", *names], ["y"], name=NODE, **attributes)
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph([node], op_type.lower(), ends[:1], ends[1:], values)
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
