"""Seeded inputs of the right shapes and dtypes, for runs whose values do not matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx

from graphs.graph import DTYPES, GraphError

if TYPE_CHECKING:
    from pathlib import Path

    from graphs.graph import Graph, TensorSpec


def random_inputs(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Return one feed: floats from N(0, 1), as normalised images and audio are; small non-negative integers.

    8-bit integers take 0 to 127; wider ones 0 or 1, because every embedding table has two rows; booleans either.

    Raises:
        GraphError: An input has a dtype that no array holds, or no known shape.
    """
    rng = np.random.default_rng(seed)
    return {spec.name: _values(spec, rng) for spec in graph.inputs()}


def save_tensor(path: Path, name: str, values: np.ndarray) -> None:
    """Write one tensor as the tools of ONNX read it, a TensorProto with its name."""
    path.write_bytes(onnx.numpy_helper.from_array(values, name).SerializeToString())


def load_tensor(path: Path) -> tuple[str, np.ndarray]:
    """Read the name ("" where it has none) and the values of one tensor.

    Raises:
        GraphError: The file holds no tensor.
    """
    try:
        tensor = onnx.TensorProto.FromString(path.read_bytes())
        return tensor.name, onnx.numpy_helper.to_array(tensor)
    except Exception as error:  # protobuf's own error is no ValueError, and damaged bytes fail in any way
        raise GraphError(f"{path} holds no tensor: {error}") from error


def _values(spec: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    if spec.shape is None:  # only in a part that was cut behind a data-dependent shape
        raise GraphError(f"the input '{spec.name}' has no known shape, so no values can be drawn: feed it yourself")
    if spec.dtype == "string":
        return np.full(spec.shape, "a", dtype=object)
    number = next((key for key, name in DTYPES.items() if name == spec.dtype), None)
    if number is None:
        raise GraphError(f"the input '{spec.name}' has the dtype {spec.dtype}, for which no values can be drawn")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(number)
    if spec.dtype.startswith(("int", "uint")):
        return np.asarray(rng.integers(0, 128 if spec.dtype.endswith("int8") else 2, spec.shape)).astype(dtype)
    if spec.dtype == "bool":
        return rng.integers(0, 2, spec.shape).astype(np.bool_)
    return np.asarray(rng.standard_normal(spec.shape, dtype=np.float32)).astype(dtype)
