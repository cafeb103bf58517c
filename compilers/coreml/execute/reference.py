"""Single ONNX operators through ONNX Runtime's unoptimised CPU kernels, as building blocks of MIL kernels."""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]
Attribute = tuple[str, int | float | str | tuple[int, ...]]

_OPSET: Final = 17


def run(op_type: str, *inputs: Array, **attributes: float | str | tuple[int, ...]) -> Array:
    """Run one operator with one output; sessions are kept per operator, attributes, ranks and types."""
    kinds = tuple((str(a.dtype), a.ndim) for a in inputs)
    session = _session(op_type, kinds, tuple(sorted(attributes.items())))
    feeds = {f"x{i}": np.asarray(a, order="C") for i, a in enumerate(inputs)}  # ascontiguousarray makes (1,) of ()
    (result,) = session.run(None, feeds)
    return np.asarray(result)


@functools.lru_cache(maxsize=1024)
def _session(op_type: str, kinds: tuple[tuple[str, int], ...], attributes: tuple[Attribute, ...]) -> Any:  # noqa: ANN401
    import onnx
    import onnxruntime as ort

    helper = onnx.helper
    declared = [
        helper.make_tensor_value_info(
            f"x{i}", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [f"d{i}_{axis}" for axis in range(rank)]
        )
        for i, (dtype, rank) in enumerate(kinds)
    ]
    node = helper.make_node(op_type, [info.name for info in declared], ["y"], **dict[str, Any](attributes))
    graph = helper.make_graph([node], op_type, declared, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    # One pool of threads per operator that all spin between calls would starve the rest of the machine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
