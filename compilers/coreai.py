"""Core AI, Apple's successor of Core ML (iOS 27, macOS 27): the second Apple target, optional.

Needs: the extra `coreai`: `coreai-core` (Apple, BSD-3, a beta with wheels for Linux x86-64, glibc 2.34) and
    `coreai-onnx` (BSD-3, not by Apple).
Artefacts: model.aimodel, ports.json (names and types at its border).
Environment: nothing.

The Linux build of `coreai-core` has Apple's compiler and a CPU runtime, so artefacts run here on kernels of Apple's,
though not on those of a phone: outputs count, times do not. The converter is not ours and has silent errors
(GridSample nearest, SpaceToDepth, reductions of empty tensors), and some programs crash the runtime. So each artefact
runs once when it is compiled, in the child process that every compile gets, and a float32 one that differs from ONNX
Runtime is refused.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from compilers.adapter import (
    Action,
    Compiler,
    CompilerError,
    Session,
    distribution_version,
    library_hash,
    missing_package,
    package_dir,
)
from compilers.ort_session import read_options

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import onnx

    from compilers.artefact import Artefact
    from graphs import Graph
    from partition import Device, Segment

Array = np.ndarray[Any, Any]

ASSET: Final = "model.aimodel"
PORTS: Final = "ports.json"
ENTRY: Final = "main"
RUNS_ON: Final = "Apple runtime on Linux CPU"
APPLE_SYSTEMS: Final = ("ios", "ipados", "macos", "tvos", "visionos")
# float32 sums in another order; ResNet-50 is at 2e-6.
EXACT_ERROR: Final = 1e-3
# The asset's border has 32-bit types only.
_NARROW: Final = {"int64": "int32", "uint64": "uint32", "float64": "float32"}


class CoreAICompiler(Compiler):
    """`coreai-onnx` and Apple's compiler; run by Apple's CPU runtime for Linux."""

    name: ClassVar[str] = "coreai"

    def why_not(self, action: Action, device: Device, processor: str) -> str | None:  # noqa: ARG002
        """Return None when an asset can be made and run here; there is no latency to be had."""
        if device.os not in APPLE_SYSTEMS:
            return f"Core AI runs on Apple devices only, and {device.title} is none; use --device a17_pro"
        extra = "edgefrontier[coreai]"
        reason = missing_package("coreai", extra) or missing_package("coreai_onnx", extra)
        if reason is None and action is Action.ESTIMATE:
            return "nobody has published a latency of Core AI that a model could be fitted on; measure on the device"
        return reason

    def version(self) -> str:
        """Return the versions of both packages with a hash of Apple's libraries."""
        vendor = package_dir("coreai")
        libraries = sorted(vendor.rglob("*.so")) if vendor else []
        return (
            f"coreai-core {distribution_version('coreai-core')} coreai-onnx {distribution_version('coreai-onnx')} "
            f"{library_hash(*libraries)}"
        )

    def check_request(self, segment: Segment) -> None:
        """Refuse any option, and a precision that the processor does not have."""
        read_options(segment, backend=self.name, defaults=self.defaults(segment))
        _check_precision(segment)

    def compile(self, segment: Segment, out_dir: Path) -> Artefact:
        """Convert, save the asset, and run it once against ONNX Runtime."""
        self.check_request(segment)
        graph = _lowered(segment)
        _write_ports(graph, out_dir / PORTS)
        convert(graph, out_dir / ASSET)
        error = _prove(segment, out_dir)
        return self.made(
            segment,
            out_dir,
            files=(ASSET, PORTS),
            delivered=(ASSET,),
            facts=(("runs_on", RUNS_ON), ("proof_error", f"{error:.3g}")),
        )

    def load(self, artefact: Artefact) -> Session:
        """Load the asset into Apple's CPU runtime: outputs to check, times of another processor."""
        return AssetSession(artefact.directory)


def _check_precision(segment: Segment) -> None:
    on_npu = segment.device.processor(segment.processor).kind == "npu"
    if segment.precision == "fp32" and on_npu:
        raise CompilerError("the Neural Engine computes in fp16 and int8 only; ask for fp16, or for the CPU or GPU")


def _lowered(segment: Segment) -> Graph:
    """Return the graph to convert: float16 inside for fp16, as it is otherwise."""
    from graphs import quantise

    return quantise(segment.graph, "fp16", None) if segment.precision == "fp16" else segment.graph


def convert(graph: Graph, path: Path) -> None:
    """Convert a graph and save the asset, inputs and outputs under plain names (x0, y0, ...).

    Raises:
        CompilerError: the converter refuses it.
    """
    model = graph.proto()
    fold_biases(model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import coreai_onnx

            program = coreai_onnx.convert(
                model,
                input_names=[f"x{i}" for i in range(len(graph.inputs()))],
                output_names=[f"y{i}" for i in range(len(graph.outputs()))],
                entrypoint_name=ENTRY,
            )
            program.save_asset(path)
    except Exception as error:
        raise CompilerError(f"coreai-onnx refuses {graph.name}: {error}") from error


def fold_biases(model: onnx.ModelProto) -> None:
    """Replace each DequantizeLinear of an int32 constant by its value: Core AI's has 8-bit integers only."""
    from onnx import numpy_helper

    constants = {t.name: t for t in model.graph.initializer}
    kept = []
    for node in model.graph.node:
        known = [constants.get(name) for name in node.input if name]
        if node.op_type != "DequantizeLinear" or None in known or known[0].data_type != 6:  # type: ignore[union-attr]
            kept.append(node)
            continue
        data, scale, *zero = (numpy_helper.to_array(t) for t in known if t is not None)
        shifted = data - zero[0] if zero else data
        value = shifted.astype(np.float32) * scale.astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value.astype(scale.dtype), node.output[0]))
    copies = [type(node).FromString(node.SerializeToString()) for node in kept]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def _write_ports(graph: Graph, path: Path) -> None:
    sides = {"inputs": graph.inputs(), "outputs": graph.outputs()}
    content = {side: [[s.name, s.dtype, list(s.shape or ())] for s in specs] for side, specs in sides.items()}
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


class AssetSession(Session):
    """A loaded asset on Apple's CPU runtime for Linux; times say nothing about a device."""

    on_device: ClassVar[bool] = False

    def __init__(self, directory: Path) -> None:
        ports = json.loads((directory / PORTS).read_text(encoding="utf-8"))
        self._inputs, self._outputs = ports["inputs"], ports["outputs"]
        self._loop: asyncio.Runner | None = asyncio.Runner()
        try:
            from coreai.authoring import AIModelAsset

            self._context = AIModelAsset.load(directory / ASSET).executable()
            model = self._loop.run(_enter(self._context))
            self._function = model.load_function(ENTRY)
        except Exception as error:
            self._loop.close()
            raise CompilerError(f"Apple's runtime cannot load {ASSET}: {error}") from error

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once: arrays by ONNX input name in, arrays by ONNX output name out."""
        if self._loop is None:
            raise CompilerError("the Core AI session is closed; load the artefact again")
        from coreai.runtime import NDArray

        feed = {f"x{i}": NDArray(narrowed(inputs, name)) for i, (name, _, _) in enumerate(self._inputs)}
        results = self._loop.run(_call(self._function, feed))
        return {
            name: np.asarray(results[f"y{i}"].numpy()).astype(dtype).reshape(shape)
            for i, (name, dtype, shape) in enumerate(self._outputs)
        }

    def close(self) -> None:
        """Release the model; a second call does nothing."""
        if self._loop is not None:
            self._loop.run(_leave(self._context))
            self._loop.close()
            self._loop = None


async def _enter(context: Any) -> Any:  # noqa: ANN401 - an async context manager of Apple's
    return await context.__aenter__()


async def _leave(context: Any) -> None:  # noqa: ANN401 - an async context manager of Apple's
    await context.__aexit__(None, None, None)


async def _call(function: Any, feed: Mapping[str, Any]) -> Any:  # noqa: ANN401 - Apple's function object
    return await function(dict(feed))


def narrowed(inputs: Mapping[str, Array], name: str) -> Array:
    """Return an input in the 32-bit type that crosses the asset's border.

    Raises:
        CompilerError: it is missing, or a value does not fit.
    """
    if name not in inputs:
        raise CompilerError(f"input {name!r} is missing; got {', '.join(inputs) or 'none'}")
    array = np.asarray(inputs[name], order="C")
    narrow = array.astype(_NARROW.get(str(array.dtype), str(array.dtype)))
    if array.dtype.kind in "iu" and not np.array_equal(narrow, array):
        raise CompilerError(f"input {name!r} holds an integer that does not fit the 32 bits of Core AI")
    return narrow


def _prove(segment: Segment, out_dir: Path) -> float:
    """Run the asset once; return the relative error of its float outputs.

    Raises:
        CompilerError: it fails, or is float32 and differs.
    """
    from compilers.ort_session import reference_session
    from graphs import random_inputs

    feed = random_inputs(segment.graph, 0)
    session = AssetSession(out_dir)
    try:
        got = session.run(feed)
    except CompilerError:
        raise
    except Exception as error:
        raise CompilerError(f"Apple's runtime cannot run the asset: {error}") from error
    finally:
        session.close()
    with reference_session(segment.graph) as reference:
        wanted = reference.run(feed)
    error_ratio = relative_error(got, wanted)
    if segment.precision == "fp32" and not error_ratio <= EXACT_ERROR:
        raise CompilerError(f"coreai-onnx made an asset that differs from its graph by {error_ratio:.2g} (relative L2)")
    return error_ratio


def relative_error(got: Mapping[str, Array], wanted: Mapping[str, Array]) -> float:
    """Return |got - wanted| / |wanted| over all float outputs (L2)."""
    floats = [n for n, a in wanted.items() if a.dtype.kind == "f"]
    difference = sum(float(np.sum(np.square(got[n].astype(np.float64) - wanted[n]))) for n in floats)
    size = sum(float(np.sum(np.square(wanted[n].astype(np.float64)))) for n in floats)
    return float(np.sqrt(difference / size)) if size else float(np.sqrt(difference))
