"""What quantisation needs of ONNX Runtime: sessions without optimisations, types, and its errors as ours."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import onnx

from graphs.graph import GraphError
from graphs.nodes import all_nodes, bodies

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import numpy.typing as npt
    import onnxruntime

    Feed = Mapping[str, npt.NDArray[Any]]

# A protobuf message ends at 2 GiB; what the quantiser adds (scales, nodes) stays far below the difference.
MODEL_LIMIT_BYTES = 2_000_000_000
FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)


@contextlib.contextmanager
def vendor_errors(task: str) -> Iterator[None]:
    """Turn whatever ONNX Runtime or onnx raises into one GraphError, chained; the only place that catches all.

    ONNX Runtime's quantiser logs to the root logger, and the first such call would install a handler there for the
    whole process. Its messages are dropped here; its exceptions are not.
    """
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    root.addFilter(_not_from_vendor)
    try:
        yield
    except GraphError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise GraphError(f"{task} failed: {lines[0] if lines else type(error).__name__}") from error
    finally:
        root.removeFilter(_not_from_vendor)
        root.removeHandler(handler)


def _not_from_vendor(record: logging.LogRecord) -> bool:
    return "onnxruntime" not in record.pathname


def open_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Open a session on the CPU without graph optimisations: what it computes is what the graph says.

    Raises:
        GraphError: The model passes the limit of a protobuf.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # what goes wrong arrives as an exception
    refuse_large(model.ByteSize(), model.graph.name)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def refuse_large(size_bytes: int, name: str) -> None:
    """Refuse what no single protobuf holds.

    Raises:
        GraphError: More than ``MODEL_LIMIT_BYTES``.
    """
    if size_bytes > MODEL_LIMIT_BYTES:
        raise GraphError(
            f"{name} has {size_bytes / 1e9:.1f} GB and quantisation takes {MODEL_LIMIT_BYTES / 1e9:.0f} GB at "
            "most: cut the graph with extract and quantise the parts."
        )


def basic_optimisation(source: Path, target: Path) -> onnx.ModelProto:
    """Fold constants, identities and batch norms of a model file, and give the result.

    Writes ``target``. Scalars that equal each other keep initialisers of their own, because a shared one could
    get only one scale (ONNX Runtime's own pre-processing does the same).
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(
        str(source), options, providers=["CPUExecutionProvider"], disabled_optimizers=["ConstantSharing"]
    )
    return read_inlined(target)


def read_inlined(file: Path) -> onnx.ModelProto:
    """Read a model with every weight inside; ONNX Runtime leaves in their files those that came from files."""
    model = onnx.load_model_from_string(file.read_bytes())
    onnx.external_data_helper.load_external_data_for_model(model, str(file.parent))
    return model


def expose(model: onnx.ModelProto, tensors: Iterable[str]) -> onnx.ModelProto:
    """Copy a model with these tensors as its only outputs, without types: ONNX Runtime infers them."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    known = {value.name: value for value in exposed.graph.output}
    outputs = [known.get(name) or onnx.ValueInfoProto(name=name) for name in tensors]
    del exposed.graph.output[:]
    exposed.graph.output.extend(outputs)
    return exposed


def without_passed(model: onnx.ModelProto) -> onnx.GraphProto:
    """Take off the outputs that no node makes, inputs and constants; return all outputs and those constants.

    A converter would put its nodes between an input and itself.
    """
    graph, whole = model.graph, onnx.GraphProto()
    made = {name for node in graph.node for name in node.output}
    passed = {value.name for value in graph.output} - made
    whole.output.extend(graph.output)
    whole.initializer.extend(tensor for tensor in graph.initializer if tensor.name in passed)
    del graph.output[:]
    graph.output.extend(value for value in whole.output if value.name in made)
    return whole


def give_again(whole: onnx.GraphProto, graph: onnx.GraphProto) -> None:
    """Give all outputs again, with the values of the constants among them as they were."""
    del graph.output[:]
    graph.output.extend(whole.output)
    there = {tensor.name for tensor in graph.initializer}
    graph.initializer.extend(tensor for tensor in whole.initializer if tensor.name not in there)


def tensor_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all tensors that a graph holds, makes or takes, its bodies' included."""
    inside = [body for node in all_nodes(graph) for body in bodies(node)]
    ends = {end.name for one in (graph, *inside) for end in (*one.input, *one.initializer)}
    return ends | {name for node in all_nodes(graph) for name in node.output}


def infer_types(model: onnx.ModelProto) -> None:
    """Write the type and shape of every intermediate tensor into the model, as ONNX Runtime infers them.

    ONNX Runtime knows its own operators (com.microsoft) too, which ``onnx.shape_inference`` does not.
    """
    names = [name for node in model.graph.node for name in node.output if name]
    session = open_session(expose(model, names))
    declared = {value.name for value in model.graph.output}
    del model.graph.value_info[:]
    for value in session.get_outputs():
        element = _ELEMENTS.get(value.type)
        if element is not None and value.name not in declared:
            info = onnx.helper.make_tensor_value_info(value.name, element, value.shape)
            model.graph.value_info.append(info)


_ELEMENTS = {
    f"tensor({name})": element
    for name, element in {
        "float": onnx.TensorProto.FLOAT,
        "float16": onnx.TensorProto.FLOAT16,
        "bfloat16": onnx.TensorProto.BFLOAT16,
        "double": onnx.TensorProto.DOUBLE,
        "bool": onnx.TensorProto.BOOL,
        "string": onnx.TensorProto.STRING,
        **{f"int{bits}": getattr(onnx.TensorProto, f"INT{bits}") for bits in (8, 16, 32, 64)},
        **{f"uint{bits}": getattr(onnx.TensorProto, f"UINT{bits}") for bits in (8, 16, 32, 64)},
    }.items()
}


def element_types(model: onnx.ModelProto) -> dict[str, int]:
    """Give the element type of every tensor of the main graph that has one, constants left out."""
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    values = (*graph.input, *graph.value_info, *graph.output)
    return {
        value.name: value.type.tensor_type.elem_type
        for value in values
        if value.type.HasField("tensor_type") and value.name not in constants
    }
