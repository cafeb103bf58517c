"""Turn a lowered program into an `.mlpackage` that is the same, byte for byte, each time."""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compilers.adapter import CompilerError
from compilers.coreml.lower import Lowered, Port
from compilers.coreml.package import model_file_of
from compilers.coreml.vendor import builder, coremltools

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PORTS_KEY: Final = "edgefrontier.ports"
NODES_KEY: Final = "edgefrontier.nodes"
_DATE_KEY: Final = "com.github.apple.coremltools.conversion_date"
HALF_MAX: Final = 65504.0
MASK: Final = 40000.0
_ARITHMETIC: Final = frozenset({"add", "sub", "mul", "select"})
_COMPUTE: Final = {"fp32": "FLOAT32", "fp16": "FLOAT16"}


def write_package(lowered: Lowered, path: Path, *, target: str, compute: str) -> None:
    """Run coremltools' passes and backend on the program and save the package at `path`.

    Raises:
        CompilerError: a pass or the backend fails.
    """
    save_model(convert(lowered, target=target, compute=compute), lowered, path)


def convert(lowered: Lowered, *, target: str, compute: str) -> Any:  # noqa: ANN401 - a coremltools model
    """Run coremltools' passes and backend on the program.

    Raises:
        CompilerError: a pass or the backend fails.
    """
    ct = coremltools()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if compute == "fp16":
                _narrow_constants(lowered.program)
            return ct.convert(
                lowered.program,
                convert_to="mlprogram",
                compute_precision=getattr(ct.precision, _COMPUTE[compute]),
                minimum_deployment_target=getattr(ct.target, target),
                pass_pipeline=_pipeline(compute),
                skip_model_load=True,
            )
    except Exception as error:
        raise CompilerError(f"coremltools failed to convert the program: {error}") from error


def _narrow_constants(program: Any) -> None:  # noqa: ANN401 - a coremltools object
    """Replace finite constants that fp16 has not, before coremltools makes them infinite.

    They are stand-ins for infinity in masks. As infinities they give NaN: a row that is masked as a whole, or
    0 * inf where exporters multiply the mask in (coremltools PR #2669). Apple advises -40000, which leaves room to add.
    """
    block = program.functions["main"]
    for operation in list(block.operations):
        var = operation.outputs[0]
        users = {user.op_type for user in var.child_ops}
        if operation.op_type != "const" or not users or not users <= _ARITHMETIC or not _exceeds_half(var.val):
            continue
        value = np.asarray(var.val)
        bounded = np.where(np.isfinite(value), np.clip(value, -MASK, MASK), value)
        kept = np.where(np.abs(value) > HALF_MAX, bounded, value).astype(value.dtype)
        with block:
            narrow = builder().const(val=kept, name=f"{operation.name}_half", before_op=operation)
        block.replace_uses_of_var_after_op(anchor_op=operation, old_var=var, new_var=narrow)
        block.remove_ops([operation])


def _exceeds_half(value: Any) -> bool:  # noqa: ANN401 - an array, a scalar or a string
    array = np.asarray(value)
    return array.dtype == np.float32 and bool(np.any(np.isfinite(array) & (np.abs(array) > HALF_MAX)))


def save_model(model: Any, lowered: Lowered, path: Path) -> None:  # noqa: ANN401 - a coremltools model
    """Save a converted, perhaps compressed, model with the ports and node names of its graph.

    Raises:
        CompilerError: coremltools cannot write the package.
    """
    try:
        model.user_defined_metadata[PORTS_KEY] = _ports(lowered)
        model.user_defined_metadata[NODES_KEY] = json.dumps(dict(sorted(lowered.node_of.items())))
        shutil.rmtree(path, ignore_errors=True)
        model.save(str(path))
    except Exception as error:
        raise CompilerError(f"coremltools failed to write {path.name}: {error}") from error
    _settle(path)


def _pipeline(compute: str) -> Any:  # noqa: ANN401 - a coremltools object
    """Return coremltools' passes; in fp32 without the one that trades exactness for a fused kernel.

    It divides one scale of a quantised addition into the other, which only the Neural Engine (fp16) gains from,
    and moves values that lie near a rounding step. What narrows integers for fp16 is held to those that fit 16 bits.
    """
    pipeline = coremltools().PassPipeline.DEFAULT
    if compute == "fp16":
        pipeline.set_options("common::add_int16_cast", {"op_selector": _fits_int16})
    else:
        pipeline.remove_passes({"common::distributive_quantized_binary_op_scale_normalization"})
    return pipeline


def _fits_int16(op: Any) -> bool:  # noqa: ANN401 - a coremltools operation
    """Tell whether the data is no int32 and no index into it passes 32,767; the pass looks at neither."""
    return not op.x.is_tensor_or_scalar_of(dtype="int32") and max(op.x.shape, default=0) <= 2**15


def _ports(lowered: Lowered) -> str:
    sides = {"inputs": lowered.inputs, "outputs": lowered.outputs}
    return json.dumps({side: [_port_entry(p) for p in ports] for side, ports in sides.items()})


def _port_entry(port: Port) -> dict[str, Any]:
    return {"name": port.name, "mil_name": port.mil_name, "dtype": port.dtype, "shape": list(port.shape)}


def read_ports(metadata: Mapping[str, str]) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Return the input and output ports that `write_package` noted.

    Raises:
        CompilerError: the package does not have them, so another tool wrote it.
    """
    try:
        sides = json.loads(metadata[PORTS_KEY])
        inputs, outputs = (tuple(_read_port(entry) for entry in sides[side]) for side in ("inputs", "outputs"))
    except (KeyError, TypeError, ValueError) as error:
        raise CompilerError(f"the package has no {PORTS_KEY} in its metadata; another tool wrote it") from error
    return inputs, outputs


def _read_port(entry: Mapping[str, Any]) -> Port:
    return Port(name=entry["name"], mil_name=entry["mil_name"], dtype=entry["dtype"], shape=tuple(entry["shape"]))


def package_digest(path: Path) -> str:
    """Return the SHA-256 over the package's files in order of their names."""
    digest = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        digest.update(file.relative_to(path).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _settle(path: Path) -> None:
    """Remove what differs between two conversions: the date, protobuf map order, random identifiers."""
    from coremltools.proto import Model_pb2

    model_file = model_file_of(path)
    spec = Model_pb2.Model()
    spec.ParseFromString(model_file.read_bytes())
    spec.description.metadata.userDefined.pop(_DATE_KEY, None)
    content = spec.SerializeToString(deterministic=True)
    model_file.write_bytes(content)
    manifest = path / "Manifest.json"
    text = manifest.read_text(encoding="utf-8")
    stem = hashlib.sha256(content).hexdigest()
    for identifier, entry in json.loads(text)["itemInfoEntries"].items():
        text = text.replace(identifier, str(uuid.uuid5(uuid.NAMESPACE_OID, f"{stem} {entry['name']}")))
    manifest.write_text(json.dumps(json.loads(text), indent=4, sort_keys=True), encoding="utf-8")
