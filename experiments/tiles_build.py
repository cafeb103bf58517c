"""The same tiles as code: kernels in OpenCL, CUDA and Metal, and a Hexagon HVX object, with what their code says.

The GPU's tile is built in each language as it is. The NPU's tile becomes the outer block of a loop nest for the vector
unit beside it, each size rounded down to one that comes out even; registers within it are TVM's static choice. Each
artefact is one operator alone, without what a model would fuse to it. Nothing of it runs here.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any, Final

from compilers import Action, Artefact, CompilerError, Limits, compile_segment, get_compiler
from experiments import store
from experiments.console import plain_table
from experiments.tiles_plan import Goal, buildable_tile
from experiments.tiles_plot import short_layer
from experiments.units import quantity, size
from graphs import Calibration, Graph, GraphError, quantise, single
from partition import Device, Segment, Tile, load_device
from partition.tile import CONV, DEPTHWISE, MATMUL, NORM, POOL, NpuTile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from experiments.tiles_cross import Crossing
    from partition.tile import GpuMachine, GpuTile, Layer

_NODE: Final = "layer"
_COMPILER: Final = "tvm"
_VECTOR_UNIT: Final = "hvx"
_CALIBRATION_BATCHES: Final = 2
# A GPU of the language and the CPU that calls it, in TVM's words. The source says no more than the language.
_LANGUAGES: Final = {
    "cuda": ({"kind": "cuda", "arch": "sm_87"}, {"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a78"}),
    "metal": ({"kind": "metal"}, {"mtriple": "arm64-apple-ios", "mcpu": "apple-a17"}),
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """One operator as code for one target: the tile that was asked for, how it was built, and facts of the code.

    Loads, stores (to memory that the whole chip shares) and flops are those of the whole operator, a vector's as one.
    `on_chip_bytes` is a block's shared memory, or the stack; a vector unit's instructions are counted once each in the
    assembly. None: not known for this target. `reason` says why there is no artefact.
    """

    operator: str
    target: str
    precision: str
    tile: str
    built: str = ""
    on_chip_bytes: int | None = None
    vector_bytes: int | None = None
    loads: int | None = None
    stores: int | None = None
    flops: int | None = None
    vector_instructions: int | None = None
    vector_products: int | None = None
    artefact: str = ""
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Targets:
    """Where to build for: the GPU's device and precision, and the NPU's, whose vector unit is built for."""

    gpu: str
    gpu_precision: str
    npu: str
    npu_precision: str


def build(
    crossings: Sequence[Crossing], machine: GpuMachine, targets: Targets, objective: str, folder: Path, console: Console
) -> None:
    """Build each operator for each target, print the table and write `artefacts.csv`; a refusal is a row."""
    rows = [row for c in crossings for row in _rows(c, machine, targets, objective, folder.parent / "build")]
    store.write_csv(folder / "artefacts.csv", tuple(f.name for f in dataclasses.fields(Built)),
                    map(dataclasses.asdict, rows))  # fmt: skip
    _print(rows, crossings, console)


def _rows(crossing: Crossing, machine: GpuMachine, targets: Targets, objective: str, root: Path) -> Iterator[Built]:
    layer = crossing.layer
    graph = None if layer.kind == NORM else graph_of(layer)
    kernel = None if graph is None else buildable_tile(layer, machine, Goal(objective=objective))
    for target, device, processor, precision in _places(targets):
        tile = crossing.npu.tile if processor == _VECTOR_UNIT else kernel
        row = Built(operator=layer.name, target=target, precision=precision, tile=str(tile or "-"))
        if graph is None or tile is None:
            what = f"{layer.op_type} is several kernels" if graph is None else "no kernel can be written with a tile"
            yield dataclasses.replace(row, tile="-", reason=what)
        elif isinstance(device, str):
            yield dataclasses.replace(row, reason=device)
        else:
            try:
                yield _read(row, _compiled(graph, device, processor, precision, _sizes(tile, layer), root))
            except (CompilerError, GraphError) as error:
                yield dataclasses.replace(row, reason=str(error))


def _compiled(
    graph: Graph, device: Device, processor: str, precision: str, sizes: Mapping[str, int], root: Path
) -> Artefact:
    why = get_compiler(_COMPILER).why_not(Action.COMPILE, device, processor)
    if why is not None:
        raise CompilerError(why)
    segment = Segment(
        graph=_in_precision(graph, precision), device=device, processor=processor, compiler=_COMPILER,
        precision=precision, tiles=(Tile(node=_NODE, sizes=tuple(sizes.items())),),
    )  # fmt: skip
    return compile_segment(segment, root, Limits())


def _sizes(tile: GpuTile | NpuTile, layer: Layer) -> dict[str, int]:
    """Return the sizes; the channels of an NPU's tile are those of one group, and in a loop nest all groups are one."""
    sizes = dict(tile.sizes)
    return sizes | {"k": sizes["k"] * layer.groups} if isinstance(tile, NpuTile) and layer.kind == CONV else sizes


def _places(targets: Targets) -> Iterator[tuple[str, Device | str, str, str]]:
    """Name each target with its device (or why there is none), processor and precision."""
    gpu = load_device(targets.gpu)
    language = gpu.processor("gpu").ids.get(_COMPILER, {}).get("kind", "")
    own = gpu if language else f"{gpu.name} does not say what TVM generates for its GPU"
    yield language or "gpu", own, "gpu", targets.gpu_precision
    for name in _LANGUAGES:
        if name != language:
            yield name, _speaking(gpu, name), "gpu", targets.gpu_precision
    npu = load_device(targets.npu)
    has = any(p.name == _VECTOR_UNIT for p in npu.processors)
    vector = npu if has else f"{npu.name} has no processor {_VECTOR_UNIT} in its device file"
    yield "hexagon hvx", vector, _VECTOR_UNIT, _whole(targets.npu_precision)


def _speaking(device: Device, language: str) -> Device:
    """Return the device with a GPU that is programmed in that language; its figures stay."""
    gpu, cpu = _LANGUAGES[language]
    ids = {"gpu": gpu, "cpu": {"kind": "llvm", **cpu}}
    processors = tuple(
        dataclasses.replace(p, ids={**p.ids, _COMPILER: ids[p.name]}) if p.name in ids else p for p in device.processors
    )
    return dataclasses.replace(device, processors=processors)


def _whole(precision: str) -> str:
    """Return the precision of the vector unit's code: TVM's for CPUs and vector units has no fp16."""
    return "fp32" if precision == "fp16" else precision


def _in_precision(graph: Graph, precision: str) -> Graph:
    if precision != "int8":
        return graph
    return quantise(graph, "int8", Calibration.random(graph, _CALIBRATION_BATCHES, 0))


# --- one operator as a graph -----------------------------------------------------------------------------------


def graph_of(layer: Layer) -> Graph:
    """Return the layer as a model by itself, in ONNX's layout."""
    image = (layer.batch, layer.in_channels, layer.in_y, layer.in_x)
    window: dict[str, Any] = {"kernel_shape": layer.kernel, "strides": layer.stride, "pads": layer.all_pads}
    if layer.kind in (CONV, DEPTHWISE):
        groups = layer.in_channels if layer.kind == DEPTHWISE else layer.groups
        outputs = layer.k if layer.kind == DEPTHWISE else layer.groups * layer.k
        weight = (outputs, layer.c, *layer.kernel)
        return single("Conv", image, (weight,), group=groups, dilations=layer.dilation, **window)
    if layer.kind == POOL:
        return single(layer.op_type, image, **window)
    assert layer.kind == MATMUL, layer.kind
    batch = (layer.groups,) if layer.groups > 1 else ()
    return single("MatMul", (*batch, layer.x, layer.c), ((*batch, layer.c, layer.k),))


# --- facts -----------------------------------------------------------------------------------------------------


def _read(row: Built, artefact: Artefact) -> Built:
    about = dataclasses.replace(row, artefact=str(artefact.directory))
    kernels = artefact.directory / "kernels.json"
    if kernels.is_file():
        return _of_kernels(about, json.loads(kernels.read_text(encoding="utf-8")))
    return _of_loops(about, json.loads((artefact.directory / "functions.json").read_text(encoding="utf-8")))


def _of_kernels(row: Built, functions: list[dict[str, Any]]) -> Built:
    function = next(f for f in functions if f["reason"] == "asked for by the plan")
    kernels = function["kernels"]
    threads = [math.prod(k["grid"]) * math.prod(k["block"]) for k in kernels]
    accesses = [(a, n) for k, n in zip(kernels, threads, strict=True) for a in k["accesses"] if not a["shared"]]
    main = max(kernels, key=lambda kernel: kernel["flops"])
    return dataclasses.replace(
        row,
        built=f"{'x'.join(str(n) for n in main['block'] if n > 1) or 1} threads x {math.prod(main['grid'])} blocks",
        on_chip_bytes=max(k["shared_bytes"] for k in kernels),
        vector_bytes=max(a["vector"] * a["element_bytes"] for a, _ in accesses),
        loads=sum(a["per_thread"] * n for a, n in accesses if not a["store"]),
        stores=sum(a["per_thread"] * n for a, n in accesses if a["store"]),
        flops=sum(k["flops"] * n for k, n in zip(kernels, threads, strict=True)),
    )


def _of_loops(row: Built, functions: list[dict[str, Any]]) -> Built:
    function = next(f for f in functions if f["reason"] == "asked for by the plan")
    code, config = function["code"], function["config"]
    rows, columns, channels = config["block"]
    within = f"y{rows} x{columns} k{channels}, registers {config['columns']} x {config['channels']}"
    return dataclasses.replace(
        row, built=within, on_chip_bytes=code.get("stack_bytes"),
        **{name: code.get(name) for name in ("vector_bytes", "loads", "stores", "flops", "vector_instructions",
                                             "vector_products")},
    )  # fmt: skip


def _print(rows: Sequence[Built], crossings: Sequence[Crossing], console: Console) -> None:
    version = get_compiler(_COMPILER).version().partition("+")[0]
    console.print(f"\nthe same tiles as code, by {version}, one operator each", style="bold")
    headings = ("operator", "target", "tile", "built", "on chip", "vector", "loads", "stores", "flops", "HVX")
    table = plain_table(*headings, no_wrap=True)
    names = {c.layer.name: short_layer(c.layer) for c in crossings}
    for row in rows:
        counts = [quantity(n, "") for n in (row.loads, row.stores, row.flops)]
        products = "-" if row.vector_instructions is None else f"{row.vector_instructions} ({row.vector_products})"
        table.add_row(
            names[row.operator], f"{row.target} {row.precision}", row.tile, "not built" if row.reason else row.built,
            size(row.on_chip_bytes), size(row.vector_bytes), *counts, products,
        )  # fmt: skip
    console.print(table)
    for reason in dict.fromkeys(row.reason for row in rows if row.reason):
        where = dict.fromkeys(f"{names[r.operator]} ({r.target})" for r in rows if r.reason == reason)
        console.print(f"  not built: {', '.join(where)}: {reason}")
    console.print(
        "on chip: a block's shared memory, or the stack of the vector unit's code (TVM's LLVM allocates no VTCM); "
        "loads, stores, flops: of the whole operator, a vector as one; HVX: instructions in the assembly (those that "
        "multiply)", style="dim",
    )  # fmt: skip
