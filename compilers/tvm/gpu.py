"""A graph for a GPU: a tile for each fused function, kernels in the GPU's language, and what their code says.

Imports TVM; only reached through the methods of `TvmCompiler`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tvm
import tvm_ffi

from compilers.adapter import CompilerError
from compilers.tvm import foreign, frontend, library, nvrtc
from compilers.tvm.blocks import UnscheduledError
from compilers.tvm.gpu_code import Function
from compilers.tvm.gpu_facts import Split
from compilers.tvm.gpu_flat import schedule_rest
from compilers.tvm.gpu_schedule import analyse_gpu, schedule_gpu
from compilers.tvm.nodes import tiles_by_function
from compilers.tvm.opencl import PROGRAM_FILE, WEIGHTS_FILE
from compilers.tvm.program import program_of
from compilers.tvm.targets import target_of
from compilers.tvm.textures import PIPELINE, TEXEL, chosen, textured, with_images
from partition.tile import GpuTile, TileError, buildable_space, gpu_machine, search_gpu

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from compilers.tvm.textures import Layout
    from partition import Segment
    from partition.tile import GpuMachine, Layer

SOURCES: Final = {"opencl": "kernels.cl", "metal": "kernels.metal", "cuda": "kernels.cu"}
_PTX: Final = "kernels.ptx"
# Without figures of the GPU: a wave of 64 threads, with as many sums as any GPU's registers hold.
_THREADS: Final = 64
_CHANNELS: Final = 16
_SUMS: Final = 4


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GpuBuilt:
    """The executable, the source of its kernels, and each fused function with how it was scheduled.

    `module` is the graph as calls of those functions, before TVM makes bytecode of it. `integer_macs` counts the
    multiply-adds of a Q/DQ graph that are computed in integers. `layouts` are the parameters that are textures.
    """

    executable: Any
    module: Any
    target: Any
    functions: tuple[Function, ...]
    integer_macs: int
    layouts: Mapping[str, Mapping[int, Layout]]

    @property
    def kind(self) -> str:
        """The language of the kernels, in TVM's words."""
        return str(self.target.kind.name)

    def source(self) -> str:
        """Return the kernels' source."""
        found = [module for module in _imported(self.executable.mod) if module.kind == self.kind]
        return "\n".join(str(module.inspect_source()) for module in found)


def machine_of(segment: Segment) -> GpuMachine | None:
    """Return the GPU's figures in the segment's precision, None where its device file has too few of them."""
    try:
        return gpu_machine(segment.device, segment.precision, processor=segment.processor)
    except TileError:
        return None


def build(segment: Segment, *, textures: bool = False) -> GpuBuilt:
    """Schedule and build a segment for the GPU of its device, with tensors as `textures` where they can be.

    Raises:
        CompilerError: TVM refused the graph or the target, a tile of the segment cannot be built, or nothing can be a
            texture.
    """
    target, machine = target_of(segment.device, segment.processor), machine_of(segment)
    imported = frontend.read(segment.graph)
    lowered = frontend.halve(imported) if segment.precision == "fp16" else imported
    module, fused = frontend.fused(lowered, target)
    functions = {name: _with_names_of_their_own(func) for name, func in fused.items()}
    asked = tiles_by_function(segment, module, functions, GpuTile)
    lanes = TEXEL if textures else None
    choices = {name: _choose(name, func, target, machine, asked.get(name), lanes) for name, func in functions.items()}
    scheduled = {name: choice.scheduled for name, choice in choices.items()}
    layouts, buffers = chosen(module, scheduled, target) if textures else ({}, {})
    whole, built = textured(module, scheduled, layouts, target) if textures else (module, scheduled)
    split = Split()
    executable = library.assemble(
        whole, built, {}, target, target, instruments=[split], lowering=PIPELINE if textures else "default"
    )
    calls, nodes, code = frontend.count_calls(module), frontend.nodes_of(module), split.code()
    return GpuBuilt(
        executable=executable,
        module=module,
        target=target,
        functions=tuple(
            Function(
                name=name,
                calls=calls[name],
                nodes=tuple(tuple(call) for call in nodes[name]),
                rule=choice.rule,
                tile=choice.tile,
                reason=choice.reason,
                code=code[name],
                buffers=tuple((code[name].parameters[at], why) for (of, at), why in buffers.items() if of == name),
            )
            for name, choice in choices.items()
            if name in code
        ),
        integer_macs=int(imported.attrs[frontend.INTEGER_MACS]),
        layouts=layouts,
    )


def _with_names_of_their_own(func: Any) -> Any:  # noqa: ANN401
    """Rename results that TVM calls alike (those of a split): a kernel's arguments are told by their names."""
    taken: set[str] = set()
    renamed = {}
    for parameter in func.params:
        name = str(parameter.name)
        if name in taken:
            name = f"{name}_{len(taken)}"
            renamed[parameter] = tvm.tirx.decl_buffer(parameter.shape, parameter.dtype, name)
        taken.add(name)
    if not renamed:
        return func
    body = tvm_ffi.structural_map(func.body, [(tvm.ir.Var, lambda variable: renamed.get(variable, variable))])
    return tvm.tirx.PrimFunc([renamed.get(parameter, parameter) for parameter in func.params], body, attrs=func.attrs)


def export(built: GpuBuilt, folder: Path) -> tuple[str, ...]:
    """Write the host's library or objects and the kernels' source; return the files' names, the main one first."""
    name = SOURCES[built.kind]
    (folder / name).write_text(built.source(), encoding="utf-8")
    triple = str(built.target.host.attrs["mtriple"])
    if "apple" not in triple:
        return (*foreign.export(built.executable, folder, triple), name)
    built.executable.export_library(str(folder / "model.tar"), fcompile=tvm.support.tar.tar)
    return ("model.tar", name)


def export_ptx(built: GpuBuilt, folder: Path) -> tuple[tuple[str, ...], str]:
    """Write CUDA kernels as PTX where NVRTC is here and knows the architecture; return the file, and what was done.

    Raises:
        CompilerError: NVRTC refuses the source.
    """
    reason = nvrtc.why_not()
    arch = str(built.target.attrs["arch"])
    if reason is None and arch not in nvrtc.architectures():
        reason = f"this NVRTC compiles for no {arch}"
    if reason is not None:
        return (), f"no PTX: {reason}"
    (folder / _PTX).write_text(nvrtc.ptx(built.source(), arch), encoding="utf-8")
    return (_PTX,), f"NVRTC compiles the source for {arch}"


def export_for_opencl(built: GpuBuilt, folder: Path) -> tuple[str, ...]:
    """Write what `opencl.OpenClSession` needs beside the kernels: the order of the calls, and the weights.

    Raises:
        CompilerError: a part of the graph is not a kernel.
    """
    program, constants = with_images(
        *program_of(built.module, {function.name for function in built.functions}), built.layouts
    )
    (folder / PROGRAM_FILE).write_text(json.dumps(program.to_json()), encoding="utf-8")
    np.savez(folder / WEIGHTS_FILE, allow_pickle=False, **constants)
    return (PROGRAM_FILE, WEIGHTS_FILE)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    scheduled: Any
    rule: str
    tile: GpuTile | None = None
    reason: str = ""


def _choose(
    name: str,
    func: Any,  # noqa: ANN401
    target: Any,  # noqa: ANN401
    machine: GpuMachine | None,
    asked: GpuTile | None,
    lanes: int | None,
) -> _Choice:
    """Schedule with the tile that was asked for, else the model's best, else the usual one, else without a tile.

    `lanes` is how wide vectors are to be, where that matters.
    """
    try:
        nest = analyse_gpu(func)
    except UnscheduledError as error:
        nest, reason = None, str(error)
    else:
        reason = "it has no reduction"
    if asked is not None:
        return _as_asked(name, func, asked, target)
    for tile in _proposals(nest.layer(name), machine, lanes) if nest else ():
        try:
            return _Choice(scheduled=schedule_gpu(func, tile, target), rule="tile", tile=tile)
        except UnscheduledError as error:
            reason = f"{tile}: {error}"
    try:
        scheduled, rule = schedule_rest(func, target)
    except UnscheduledError as error:
        raise CompilerError(f"TVM's function {name} cannot be scheduled for a GPU: {error}") from error
    return _Choice(scheduled=scheduled, rule=rule, reason=reason)


def _as_asked(name: str, func: Any, tile: GpuTile, target: Any) -> _Choice:  # noqa: ANN401
    try:
        return _Choice(
            scheduled=schedule_gpu(func, tile, target), rule="tile", tile=tile, reason="asked for by the plan"
        )
    except UnscheduledError as error:
        raise CompilerError(f"the plan's tile {tile} cannot be built for {name}: {error}") from error


def _proposals(layer: Layer, machine: GpuMachine | None, lanes: int | None) -> tuple[GpuTile, ...]:
    usual = usual_tile(layer)
    if machine is None:
        return (usual,)
    space = buildable_space(layer, machine)
    if lanes in space.vector:
        space = dataclasses.replace(space, vector=(lanes,))
    try:
        return search_gpu(layer, machine, space).tile, usual
    except TileError:
        return (usual,)


def usual_tile(layer: Layer) -> GpuTile:
    """Return a tile that suits most GPUs, for one whose figures are not known."""
    vector = math.gcd(layer.k, _SUMS)
    channels = min(_CHANNELS, 1 << max(0, (layer.k // vector).bit_length() - 1))
    k_tile = math.gcd(layer.c, 2 * _SUMS)
    many = layer.positions * layer.k > _THREADS * _THREADS * _SUMS * vector
    return GpuTile(
        block_x=_THREADS // channels, block_y=channels, thread_x=_SUMS if many else 1, thread_k=vector, k_tile=k_tile,
        staged=False, vector=vector, unroll=math.gcd(k_tile, _SUMS),
    )  # fmt: skip


def _imported(module: Any) -> list[Any]:  # noqa: ANN401
    return [module, *(deeper for imported in module.imports for deeper in _imported(imported))]
