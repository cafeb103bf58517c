"""Read and write ONNX files: the only module that touches them."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO

import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]  # it has no stubs

from graphs.graph import Graph, GraphError, TensorSpec
from graphs.normalise import normalise
from graphs.shapes import check_and_infer, spec_of
from graphs.weights import ExternalFiles, held_bytes
from graphs.wire import RawTensor, read_model, write_model
from graphs.work import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from graphs.weights import Data, Weight

_NO_BINDINGS: Mapping[str, int] = MappingProxyType({})

# A protobuf message ends at 2 GB; past this the weights go into a file of their own.
_LARGEST_INLINE_BYTES = 1_500_000_000
_LARGEST_PROTO_BYTES = 2**31 - 1
# Runtimes map external tensors by page; small ones (shapes, scales) stay in the model, where inference sees them.
_PAGE_BYTES = 4096
_SMALLEST_EXTERNAL_BYTES = 1024


def load(path: Path | str, *, bind: Mapping[str, int] = _NO_BINDINGS) -> Graph:
    """Read a model: check it, bind its symbolic dimensions, infer shapes, name nodes and count their work.

    Weights inside the file are read once; external ones are mapped and never copied. They must lie in the model's
    folder or, where the model is a link (as in Hugging Face's cache), in the folder that it leads to.

    Args:
        path: An ONNX file of opset 7 or newer.
        bind: Size of each symbolic dimension of the inputs. One without a symbol is called `<input>.<axis>`.

    Raises:
        GraphError: Whatever is wrong with the file or the bindings, in one sentence.
    """
    path = Path(path)
    if not path.is_file():
        raise GraphError(f"{path} is not a file: give the path of an ONNX model")
    try:
        body, tensors = read_model(path)
        return _build(body, tensors, name=path.stem, files=ExternalFiles(path.parent, path), bind=bind)
    except GraphError:
        raise
    except _MALFORMED as error:
        raise GraphError(f"{path} is malformed ({type(error).__name__}: {error}): export it again") from error


# Damaged bytes still parse now and then, into a message that breaks any of the promises that code relies on.
_MALFORMED = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, OSError, RecursionError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip


def from_proto(
    model: onnx.ModelProto,
    *,
    name: str | None = None,
    base_dir: Path | None = None,
    bind: Mapping[str, int] = _NO_BINDINGS,
) -> Graph:
    """Take a model from memory as `load` takes one from a file; `model` is copied, not kept.

    Args:
        model: Any ONNX model.
        name: The graph's name; by default the one in the model.
        base_dir: The folder that external data is relative to; needed only with such data.
        bind: As for `load`.

    Raises:
        GraphError: Whatever is wrong with the model or the bindings, in one sentence.
    """
    body = _without_initializers(model)
    tensors = (_raw_tensor(tensor) for tensor in model.graph.initializer)
    return _build(body, tensors, name=name or model.graph.name or "model", files=ExternalFiles(base_dir), bind=bind)


def _without_initializers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model except its initialisers, whose bytes must not be copied on the way."""
    body = onnx.ModelProto()
    _copy_fields(model, body, leave="graph")
    if model.HasField("graph"):
        body.graph.SetInParent()
        _copy_fields(model.graph, body.graph, leave="initializer")
    return body


def _copy_fields(source: Message, target: Message, *, leave: str) -> None:
    for field, value in source.ListFields():
        if field.name == leave:
            continue
        if isinstance(value, Message):
            getattr(target, field.name).CopyFrom(value)
        elif isinstance(value, str | bytes | int | float):
            setattr(target, field.name, value)
        else:
            getattr(target, field.name).extend(value)


def _raw_tensor(tensor: onnx.TensorProto) -> RawTensor:
    """Take a tensor apart; a protobuf gives out its raw bytes as a copy, so one access is all that is needed."""
    if tensor.HasField("raw_data"):
        header = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        return RawTensor(header, tensor.raw_data)
    header = onnx.TensorProto()
    header.CopyFrom(tensor)
    return RawTensor(header, None)


def _build(
    body: onnx.ModelProto,
    tensors: Iterable[RawTensor],
    *,
    name: str,
    files: ExternalFiles,
    bind: Mapping[str, int],
) -> Graph:
    weights = normalise(body, tensors, files, bind)
    shaped = check_and_infer(body, weights)
    made = [info.name for info in body.graph.input]
    made += [tensor for node in body.graph.node for tensor in node.output if tensor]
    infos = {tensor: shaped.infos[tensor] for tensor in made if tensor in shaped.infos}
    specs = {tensor: _spec(tensor, infos) for tensor in made}
    return Graph(
        name=name,
        body=body,
        weights=weights,
        infos=infos,
        tensors=specs,
        nodes=count(body, shaped.nodes, specs, weights),
        base_dir=files.base_dir if any(weight.external for weight in weights.values()) else None,
    )


def _spec(name: str, infos: Mapping[str, onnx.ValueInfoProto]) -> TensorSpec:
    return spec_of(infos[name]) if name in infos else TensorSpec(name=name, shape=None, dtype="unknown")


def assemble(
    body: onnx.ModelProto, infos: Mapping[str, onnx.ValueInfoProto], tensors: Iterable[onnx.TensorProto] = ()
) -> onnx.ModelProto:
    """Return a new model from a graph's parts."""
    model = onnx.ModelProto()
    model.CopyFrom(body)
    ends = {info.name for info in [*body.graph.input, *body.graph.output]}
    model.graph.value_info.extend(info for name, info in infos.items() if name not in ends)
    model.graph.initializer.extend(tensors)
    return model


def to_proto(graph: Graph) -> onnx.ModelProto:
    """Return what `Graph.proto` promises."""
    held = held_bytes(graph._weights)  # noqa: SLF001  # one package
    if held > _LARGEST_PROTO_BYTES:
        raise GraphError(f"{graph.name} has {held} bytes of weights, more than a protobuf holds: use graphs.save")
    return assemble(graph._body, graph._infos, (weight.reference() for weight in graph._weights.values()))  # noqa: SLF001


def save(graph: Graph, path: Path | str) -> None:
    """Write a model, whole or not at all, with its inferred shapes.

    When the weights are external already or pass 1.5 GB, they go into `<path>.data` beside it, each on a page of
    its own so that a runtime can map it. No weight is copied in memory on the way.

    Raises:
        OSError: The folder cannot be written.
    """
    path = Path(path)
    weights = graph._weights  # noqa: SLF001  # one package
    model = assemble(graph._body, graph._infos)  # noqa: SLF001
    external = any(weight.external for weight in weights.values()) or held_bytes(weights) > _LARGEST_INLINE_BYTES
    if external:
        with _replacing(path) as file, _replacing(Path(f"{path}.data")) as data:
            write_model(file, model, list(_write_external(data, f"{path.name}.data", weights)))
    else:
        with _replacing(path) as file:
            write_model(file, model, (_inline(weight) for weight in weights.values()))


def _inline(weight: Weight) -> tuple[onnx.TensorProto, Data | None]:
    if weight.spec.dtype == "string":
        return weight.header(), None
    header = weight.header()
    header.ClearField("data_location")
    header.ClearField("external_data")
    return header, weight.data


def _write_external(
    data: BinaryIO, location: str, weights: Mapping[str, Weight]
) -> Iterator[tuple[onnx.TensorProto, Data | None]]:
    """Stream the large weights into `data`; yield what the model file holds for each weight."""
    for weight in weights.values():
        header, content = _inline(weight)
        if content is None or len(content) < _SMALLEST_EXTERNAL_BYTES:
            yield header, content
            continue
        data.write(b"\0" * (-data.tell() % _PAGE_BYTES))
        header.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", data.tell()), ("length", len(content))):
            header.external_data.add(key=key, value=str(value))
        data.write(content)
        yield header, None


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of `path` once all is written."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _umask() -> int:
    """Return the umask, which can only be read by setting it; mkstemp ignores it and makes private files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
