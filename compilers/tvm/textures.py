"""Values between an OpenCL device's kernels as textures: TVM's `global.texture`, an `image2d_array_t` in the code.

Imports TVM; only reached through the methods of `TvmCompiler`.

A texel holds four neighbouring channels, and a tensor [..., height, width, channels] becomes rows of
width * channels / 4 texels. A kernel reads and writes whole texels, so its vectors along the channels must be four
wide: a scheduled function is tried with each of its parameters as a texture, and what does not come out as whole texels
stays a buffer. A value is a texture where everything that touches it can take one, at each of its calls.

TVM's own passes for Adreno are not used: what they write is wrong (docs/vendor_bugs.md, Apache TVM 25 to 28), and their
schedules have no tiles.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.global_info import VDevice
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.s_tir.backend.adreno.pipeline import default_tir_pipeline
from tvm.tirx import compilation_pipeline

from compilers.adapter import CompilerError
from compilers.tvm.blocks import UnscheduledError, first_line, private_like, sizes
from compilers.tvm.expressions import is_constant
from compilers.tvm.gpu_facts import Split
from compilers.tvm.library import NO_ASSERTS
from compilers.tvm.program import program_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from compilers.tvm.gpu_code import HostCode, Program, Value

    Array = np.ndarray[Any, Any]

PIPELINE: Final = "edgefrontier.textures"
"""The name of the TIR pipeline that lowers textures."""
TEXEL: Final = 4
_SCOPE: Final = "global.texture"
_PICTURE: Final = 4  # axes
_DTYPES: Final = ("float32", "float16")
_SHARED: Final = "shared with"
# What TVM says of textures that a vector loop reads across their channels (docs/vendor_bugs.md, Apache TVM 28).
_KNOWN: Final = {"are used, but are not passed in": "its vectors lie across texels"}
_CALL: Final = "relax.call_tir"

Slot = tuple[str, int]
"""A parameter of a function, by its name and position."""
Layouts = Mapping[str, Mapping[int, "Layout"]]
"""How the parameters of functions that are textures lie in images, by name and position."""

# TVM registers this pipeline without the two that it returns with the others, so that a build cannot name it.
compilation_pipeline.register_tir_pipeline(
    PIPELINE,
    lambda: (
        default_tir_pipeline(),
        compilation_pipeline.finalize_host_passes,
        compilation_pipeline.finalize_device_passes,
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How a tensor lies in an image: the axes before `split` but one count its slices, that one its rows."""

    shape: tuple[int, ...]
    split: int

    @classmethod
    def of(cls, shape: Sequence[int], dtype: str, target: Any) -> Layout:  # noqa: ANN401
        """Return the layout of a tensor: the last two of four axes in a row where they fit, else the last.

        Raises:
            UnscheduledError: it cannot be an image.
        """
        if dtype not in _DTYPES:
            raise UnscheduledError(f"TVM writes texels of {' and '.join(_DTYPES)}, not of {dtype}")
        if not shape or shape[-1] % TEXEL:
            raise UnscheduledError(f"its last axis of {shape[-1] if shape else 1} is no multiple of {TEXEL}")
        spatial, slices = (int(target.attrs[f"texture_{name}_limit"]) for name in ("spatial", "depth"))
        joined = (len(shape) - 2,) if len(shape) >= _PICTURE else ()
        for split in (*joined, len(shape) - 1):
            layout = cls(shape=tuple(shape), split=split)
            depth, height, width, _ = layout.image
            if depth <= slices and max(height, width) <= spatial:
                return layout
        raise UnscheduledError(f"{'x'.join(map(str, shape))} is larger than an image may be ({spatial} texels)")

    @property
    def image(self) -> tuple[int, int, int, int]:
        """Slices, rows, texels of a row, and elements of a texel."""
        slices, rows, row = (math.prod(self.shape[axis] for axis in axes) for axes in self._axes)
        return slices, rows, row * self.shape[-1] // TEXEL, TEXEL

    @property
    def _axes(self) -> tuple[range, range, range]:
        row = max(0, self.split - 1)
        return range(row), range(row, self.split), range(self.split, len(self.shape) - 1)

    def place(self, *at: Any) -> list[Any]:  # noqa: ANN401
        """Return where an element is found in the image."""
        slices, row, column = (self._mixed(axes, at) for axes in self._axes)
        return [slices, row, column * (self.shape[-1] // TEXEL) + at[-1] // TEXEL, at[-1] % TEXEL]

    def _mixed(self, axes: range, at: Sequence[Any]) -> Any:  # noqa: ANN401
        index = tvm.tirx.IntImm("int64", 0)
        for axis in axes:
            index = index * self.shape[axis] + at[axis]
        return index


def layouts_of(func: Any, target: Any) -> tuple[dict[int, Layout], dict[int, str]]:  # noqa: ANN401
    """Return how each parameter of a function would lie in an image, and why others cannot."""
    found: dict[int, Layout] = {}
    refused: dict[int, str] = {}
    for position, parameter in enumerate(func.params):
        try:
            found[position] = Layout.of(sizes(parameter.shape), str(parameter.dtype), target)
        except UnscheduledError as reason:
            refused[position] = str(reason)
    return found, refused


def tried(name: str, func: Any, target: Any) -> dict[int, str]:  # noqa: ANN401
    """Return why parameters of a scheduled function cannot be textures, found by building it with those that might."""
    layouts, refused = layouts_of(func, target)
    if relax.analysis.has_reshape_pattern(func):
        return dict.fromkeys(range(len(func.params)), "TVM makes it another view of the same memory")

    def reasons(positions: Iterable[int]) -> dict[int, str]:
        some = {position: layouts[position] for position in positions}
        try:
            return _partial(_built(name, with_textures(func, some), target))
        except (UnscheduledError, CompilerError) as error:
            return dict.fromkeys(some, str(error))
        except (tvm.error.InternalError, RuntimeError, ValueError) as error:
            known = next((told for said, told in _KNOWN.items() if said in str(error)), None)
            return dict.fromkeys(some, known or f"TVM does not build it with a texture: {first_line(error)}")

    found = reasons(layouts)
    if found and found.keys() == layouts.keys():  # of one, perhaps, or of the way in which they come together
        found = {at: why for position in layouts for at, why in reasons([position]).items()}
        found |= reasons(layouts.keys() - found.keys())
    return refused | found


def _built(name: str, func: Any, target: Any) -> HostCode:  # noqa: ANN401
    split = Split()
    module = tvm.IRModule({name: func.with_attr("global_symbol", name)})
    with tvm.transform.PassContext(opt_level=3, config=NO_ASSERTS, instruments=[split]):
        tvm.tirx.build(module, target=target, pipeline=PIPELINE)
    return split.code()[name]


def _partial(code: HostCode) -> dict[int, str]:
    """Name the parameters of which a kernel reads parts of texels: one texel each time, for less than it holds."""
    found = {}
    for launch in code.launches:
        for access in launch.kernel.accesses:
            if access.texture and access.vector < TEXEL:
                position = code.parameters.index(launch.owner_of(access.buffer))
                found[position] = f"it reads {access.vector} of a texel's {TEXEL} elements"
    return found


def with_textures(func: Any, layouts: Mapping[int, Layout]) -> Any:  # noqa: ANN401
    """Return a scheduled function with some of its parameters as textures.

    Raises:
        UnscheduledError: it does not write whole texels, or has no block that reads or writes one of them.
    """
    owner = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    sch = Schedule(owner)
    blocks: list[str] = []
    tvm_ffi.structural_walk(func.body, [(SBlock, lambda block: blocks.append(str(block.name_hint)))])
    for position, layout in layouts.items():
        _lay_out(sch, blocks, str(func.params[position].name), layout)
    laid = sch.mod["main"]
    textures = {str(func.params[position].name) for position in layouts}
    stored = _with_whole_texels(laid, textures)
    scoped = {
        parameter: tvm.tirx.decl_buffer(parameter.shape, parameter.dtype, str(parameter.name), scope=_SCOPE)
        for parameter in stored.params
        if str(parameter.name) in textures
    }
    return private_like(func, stored.specialize(scoped))


def _lay_out(sch: Any, blocks: Iterable[str], name: str, layout: Layout) -> None:  # noqa: ANN401
    mapping = tvm.tirx.IndexMap.from_func(layout.place, ndim=len(layout.shape), index_dtype="int64")
    for block in map(sch.get_sblock, blocks):
        for kind, regions in (("read", sch.get(block).reads), ("write", sch.get(block).writes)):
            for place, region in enumerate(regions):
                if str(region.source.name) == name:
                    try:
                        sch.transform_layout(block, (kind, place), mapping)
                    except tvm.s_tir.schedule.ScheduleError as error:
                        raise UnscheduledError(first_line(error)) from error
                    return
    raise UnscheduledError(f"nothing reads or writes {name}")


def _with_whole_texels(func: Any, textures: set[str]) -> Any:  # noqa: ANN401
    """Write each vector of a texture at once, through registers.

    TVM takes a vector loop around a store to a texture apart, and each of its turns then fills a whole texel with one
    element (docs/vendor_bugs.md, Apache TVM 26).
    """
    whole: list[str] = []

    def store(loop: Any) -> Any:  # noqa: ANN401
        realize = loop.body
        is_store = isinstance(realize, SBlockRealize) and isinstance(realize.block.body, tvm.tirx.BufferStore)
        if not is_store or str(realize.block.body.buffer.name) not in textures or not _fills_texels(loop):
            return loop
        whole.append(str(realize.block.body.buffer.name))
        return _whole_texel(realize, loop.loop_var)

    stored = tvm_ffi.structural_map(func, [(tvm.tirx.For, store)])
    partial = _written(func, textures) - set(whole)
    if partial:
        raise UnscheduledError(f"it does not write {' and '.join(sorted(partial))} in vectors of {TEXEL}")
    return stored


def _fills_texels(loop: Any) -> bool:  # noqa: ANN401
    """Tell whether the lanes of a vector loop are the elements of one texel, in order, all of them or none."""
    if loop.kind != tvm.tirx.ForKind.VECTORIZED or int(loop.extent) != TEXEL:
        return False
    lane, realize = loop.loop_var, loop.body
    axes = {axis.var: value for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
    analyzer = tvm.sym.Analyzer()
    analyzer.bind(lane, tvm.ir.Range(tvm.tirx.IntImm("int64", 0), tvm.tirx.IntImm("int64", TEXEL)))
    *texel, element = (analyzer.simplify(_replaced(index, axes)) for index in realize.block.body.indices)
    return bool(
        element.same_as(lane)
        and not any(_has(index, lane) for index in (*texel, realize.predicate))
        and all(analyzer.can_prove_equal(value, _replaced(value, {lane: element * 0}) + lane)
                for value in axes.values() if _has(value, lane))
    )  # fmt: skip


def _whole_texel(realize: Any, lane: Any) -> Any:  # noqa: ANN401
    """Return the block of a vector loop as one that computes the vector and then writes it."""
    block, zero = realize.block, tvm.tirx.IntImm("int64", 0)
    body = block.body
    moved = {
        axis.var: axis.var + lane
        for axis, value in zip(block.iter_vars, realize.iter_values, strict=True)
        if _has(value, lane)
    }
    registers = tvm.tirx.decl_buffer((TEXEL,), body.buffer.dtype, f"{body.buffer.name}_texel", scope="local")
    value = _replaced(body.value, moved)
    compute = tvm.tirx.For(
        lane, zero, tvm.tirx.IntImm("int64", TEXEL), tvm.tirx.ForKind.VECTORIZED,
        tvm.tirx.BufferStore(registers, value, [lane]),
    )  # fmt: skip
    lanes = tvm.tirx.Ramp(zero, tvm.tirx.IntImm("int64", 1), TEXEL)
    write = tvm.tirx.BufferStore(body.buffer, tvm.tirx.BufferLoad(registers, [lanes]), [*body.indices[:-1], lanes])
    both = SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, tvm.tirx.SeqStmt([compute, write]),
        alloc_buffers=[registers], annotations=block.annotations,
    )  # fmt: skip
    start = {lane: zero}
    values = [_replaced(value, start) for value in realize.iter_values]
    return SBlockRealize(values, realize.predicate, both)


def _has(expr: Any, variable: Any) -> bool:  # noqa: ANN401
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, [(tvm.ir.Var, found.append)])
    return any(each.same_as(variable) for each in found)


def _replaced(expr: Any, by: Mapping[Any, Any]) -> Any:  # noqa: ANN401
    return tvm_ffi.structural_map(expr, [(tvm.ir.Var, lambda variable: by.get(variable, variable))])


def _written(func: Any, textures: set[str]) -> set[str]:  # noqa: ANN401
    found: set[str] = set()
    tvm_ffi.structural_walk(func.body, [(tvm.tirx.BufferStore, lambda store: found.add(str(store.buffer.name)))])
    return found & textures


def spread_refusals(program: Program, refusals: Mapping[Slot, str]) -> dict[Slot, str]:
    """Return why parameters are buffers: their own refusals, and those of what they share a value with, at any call."""
    by_value: dict[str, set[Slot]] = defaultdict(set)
    by_slot: dict[Slot, set[str]] = defaultdict(set)
    for step in program.steps:
        for position, value in enumerate(step.arguments):
            by_value[value.name].add((step.function, position))
            by_slot[step.function, position].add(value.name)
    ends = {slot for value in (*program.inputs, *program.outputs) for slot in by_value[value.name]}
    found = dict.fromkeys(ends, "it is an input or an output of the graph") | dict(refusals)
    queue = deque(sorted(found))
    while queue:
        slot = queue.popleft()
        for other in sorted({other for name in by_slot[slot] for other in by_value[name]} - found.keys()):
            own = found[slot].startswith(_SHARED)
            found[other] = found[slot] if own else f"{_SHARED} {slot[0]}: {found[slot]}"
            queue.append(other)
    return found


def chosen(module: Any, scheduled: Mapping[str, Any], target: Any) -> tuple[Layouts, dict[Slot, str]]:  # noqa: ANN401
    """Return which parameters of the scheduled functions become textures, and why the others are buffers.

    Raises:
        CompilerError: a part of the graph is not a kernel, or nothing can be a texture.
    """
    program, _ = program_of(module, scheduled)
    refused = {
        (name, position): reason
        for name, func in scheduled.items()
        for position, reason in tried(name, func, target).items()
    }
    buffers = spread_refusals(program, refused)
    layouts = {
        name: {at: layout for at, layout in layouts_of(func, target)[0].items() if (name, at) not in buffers}
        for name, func in scheduled.items()
    }
    layouts = {name: each for name, each in layouts.items() if each}
    if not layouts:
        reasons = "; ".join(sorted(set(refused.values())))
        raise CompilerError(f"option textures: no tensor of this graph can be one: {reasons}")
    return layouts, buffers


def with_images(program: Program, constants: Mapping[str, Array], layouts: Layouts) -> tuple[Program, dict[str, Array]]:
    """Return a program and its constants with the tensors that are textures as such."""
    images = {
        value.name: layouts[step.function][position].image
        for step in program.steps
        for position, value in enumerate(step.arguments)
        if position in layouts.get(step.function, ())
    }

    def image(value: Value) -> Value:
        of = images.get(value.name)
        return dataclasses.replace(value, shape=of, texture=True) if of else value

    steps = tuple(dataclasses.replace(s, arguments=tuple(map(image, s.arguments))) for s in program.steps)
    laid = {name: array.reshape(images.get(name, array.shape)) for name, array in constants.items()}
    return dataclasses.replace(program, steps=steps), laid


def textured(module: Any, scheduled: Mapping[str, Any], layouts: Layouts, target: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401
    """Return the module with `main` passing textures, constants laid out so, and the functions that take them.

    TVM's machine is given the device twice, once for each kind of memory.
    """
    functions = {
        name: with_textures(func, layouts[name]) if name in layouts else func for name, func in scheduled.items()
    }
    whole = {gv.name_hint: functions.get(gv.name_hint, func) for gv, func in module.functions.items()}
    laid = tvm.IRModule(whole, attrs=module.attrs)
    devices = [VDevice(target, 0, "global"), VDevice(target, 0, _SCOPE)]
    laid.update_global_info("vdevice", devices)
    for name, func in laid.functions.items():  # a call is checked against the type of the name that it calls
        relax.expr._update_type(name, func.ty)  # noqa: SLF001 - TVM offers no other way
    laid["main"] = _Main(laid, layouts, devices[1]).visit_expr(laid["main"])
    return laid, functions


@relax.expr_functor.mutator
class _Main(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: Any, layouts: Layouts, memory: Any) -> None:  # noqa: ANN401
        super().__init__(module)
        self._module, self._layouts, self._memory = module, layouts, memory

    def visit_call_(self, call: Any) -> Any:  # noqa: ANN401
        call = self.visit_expr_post_order(call)
        if call.op != tvm.ir.Op.get(_CALL):
            return call
        name, arguments = call.args[0].name_hint, list(call.args[1].fields)
        layouts = self._layouts.get(name, {})
        for position, layout in layouts.items():
            if position < len(arguments) and is_constant(arguments[position]):
                arguments[position] = self._constant(arguments[position].value.numpy(), layout)
        kinds = getattr(call.ty_args[0], "fields", call.ty_args)
        out = [
            self._kind(layouts[at], str(kind.dtype)) if at in layouts else kind
            for at, kind in enumerate(kinds, start=len(arguments))
        ]
        return relax.call_tir(self._module.get_global_var(name), relax.Tuple(arguments), out)

    def _kind(self, layout: Layout, dtype: str) -> Any:  # noqa: ANN401
        return relax.TensorType(layout.image, dtype, self._memory)

    def _constant(self, array: Array, layout: Layout) -> Any:  # noqa: ANN401
        value = tvm.runtime.tensor(np.ascontiguousarray(array.reshape(layout.image)))
        return tvm.ir.GenericConst(value, self._kind(layout, str(array.dtype)))
