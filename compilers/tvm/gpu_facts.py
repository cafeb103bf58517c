"""Static facts of GPU kernels, read from their code where TVM has just split it from the host's.

Imports TVM; only reached through the methods of `TvmCompiler`.

Loops count by their trips, and both sides of a condition as executed: a warp with one thread at work takes the time of
all. Index strides are those at the first thread of the first block.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import tvm
import tvm_ffi
from tvm.ir.instrument import pass_instrument

from compilers.adapter import CompilerError
from compilers.tvm.expressions import operator_name
from compilers.tvm.gpu_code import HostCode, Launch
from partition.tile import Access, GpuKernel

if TYPE_CHECKING:
    from collections.abc import Mapping

_SPLIT: Final = "tirx.SplitHostDevice"
_ARITHMETIC: Final = (tvm.tirx.Add, tvm.tirx.Sub, tvm.tirx.Mul, tvm.tirx.Div, tvm.tirx.Max, tvm.tirx.Min)
_CALL: Final = "tirx.call_ffi_kernel"
# Calls that compute no float: a choice between two, and how addresses are made.
_NO_ARITHMETIC: Final = frozenset({"tirx.if_then_else", "tirx.likely", "tirx.reinterpret"})
_TEXTURE_LOAD: Final = "tirx.texture2d_load"
_TEXTURE_STORE: Final = "tirx.texture2d_store"
_NO_LOOP: Final = (tvm.tirx.ForKind.UNROLLED, tvm.tirx.ForKind.VECTORIZED)
# Bytes between neighbours whose index is itself read from memory: a line each, on any GPU.
_SCATTERED: Final = 128


@pass_instrument
class Split:
    """Keeps what the split of host and device code gave: an instrument of the PassContext of a build."""

    def __init__(self) -> None:
        self.functions: dict[str, Any] = {}

    def run_after_pass(self, module: Any, info: Any) -> None:  # noqa: ANN401
        """Remember the functions after the split; a build may split several modules."""
        if info.name == _SPLIT:
            self.functions |= {gv.name_hint: func for gv, func in module.functions.items()}

    def code(self) -> dict[str, HostCode]:
        """Return the launches of each function by its name.

        Raises:
            CompilerError: a function computes outside of its kernels.
        """
        hosts = {name: f for name, f in self.functions.items() if not _is_device(f)}
        return {name: _host(func, self.functions) for name, func in hosts.items()}


def read_function(name: str, func: Any) -> GpuKernel:  # noqa: ANN401
    """Return the facts of a function without threads, as one kernel of one thread.

    Raises:
        NotImplementedError: it has a statement that scheduled functions have not.
    """
    return _Reader({}, {}).read(name, func)


def _is_device(func: Any) -> bool:  # noqa: ANN401
    return bool(func.attrs and "tirx.kernel_launch_params" in func.attrs)


def _host(func: Any, functions: Mapping[str, Any]) -> HostCode:  # noqa: ANN401
    alias: dict[str, str] = {}
    images = {str(p.name): _shape(p) for p in func.params if "texture" in str(p.scope())}
    temporaries: dict[str, int] = {}
    calls: list[Any] = []
    stores: list[str] = []

    def declare(node: Any) -> None:  # noqa: ANN401
        alias[node.buffer.name] = alias.get(_name(node.data), _name(node.data))

    def allocate(node: Any) -> None:  # noqa: ANN401
        temporaries[node.buffer.name] = _size_bytes(node.buffer)

    def call(node: Any) -> None:  # noqa: ANN401
        if getattr(node.op, "name", "") == _CALL:
            calls.append(node)

    def store(node: Any) -> None:  # noqa: ANN401
        stores.append(str(node.buffer.name))

    tvm_ffi.structural_walk(
        func.body,
        [
            (tvm.tirx.DeclBuffer, declare),
            (tvm.tirx.AllocBuffer, allocate),
            (tvm.ir.Call, call),
            (tvm.tirx.BufferStore, store),
        ],
    )
    if stores:
        raise CompilerError(f"TVM leaves the host to compute {', '.join(sorted(set(stores)))}, in the GPU's memory")
    return HostCode(
        parameters=tuple(p.name for p in func.params),
        temporaries=tuple(temporaries.items()),
        launches=tuple(_launch(node, alias, images, functions) for node in calls),
    )


def _launch(
    call: Any,  # noqa: ANN401
    alias: Mapping[str, str],
    images: Mapping[str, tuple[int, ...]],
    functions: Mapping[str, Any],
) -> Launch:
    name = str(call.args[0].value)
    axes = [str(axis) for axis in call.attrs.launch_params]
    values = [int(value) for value in call.args[len(call.args) - len(axes) :]]
    buffers = [_name(value) for value in call.args[1 : len(call.args) - len(axes)]]
    arguments = tuple(alias.get(buffer, buffer) for buffer in buffers)
    own = zip((str(p.name) for p in functions[name].params), arguments, strict=False)  # sizes come after the buffers
    reader = _Reader(
        dict(zip(axes, values, strict=True)), {parameter: images[of] for parameter, of in own if of in images}
    )
    return Launch(kernel=reader.read(name, functions[name]), arguments=arguments)


class _Reader:
    """Walks a device function once, with the number of times that the statement at hand runs."""

    def __init__(self, launch: Mapping[str, int], images: Mapping[str, tuple[int, ...]]) -> None:
        self._launch = launch
        self._images = images
        self._sizes: dict[str, int] = {}
        self._roots: dict[str, str] = {}
        # Three places to evaluate an index at: the first thread, and its neighbours along x and y.
        self._places = {place: tvm.sym.Analyzer() for place in ("", "threadIdx.x", "threadIdx.y")}
        self._shared = self._local = self._flops = self._barriers = self._turns = 0
        self._accesses: Counter[Access] = Counter()

    def read(self, name: str, func: Any) -> GpuKernel:  # noqa: ANN401
        self._statement(func.body, 1)
        return GpuKernel(
            name=name,
            grid=self._extents("blockIdx"),
            block=self._extents("threadIdx"),
            shared_bytes=self._shared,
            local_bytes=self._local,
            flops=self._flops,
            barriers=self._barriers,
            turns=self._turns,
            accesses=tuple(dataclasses.replace(a, per_thread=count) for a, count in self._accesses.items()),
            arguments=tuple((p.name, self._sizes.get(p.name, 0)) for p in func.params),
        )

    def _extents(self, kind: str) -> tuple[int, int, int]:
        x, y, z = (self._launch.get(f"{kind}.{axis}", 1) for axis in "xyz")
        return x, y, z

    def _statement(self, node: Any, times: int) -> None:  # noqa: ANN401
        visit = getattr(self, f"_{type(node).__name__}", None)
        if visit is None:
            raise NotImplementedError(f"facts of a kernel with {type(node).__name__} are not read")
        visit(node, times)

    def _SeqStmt(self, node: Any, times: int) -> None:  # noqa: ANN401, N802
        for part in node.seq:
            self._statement(part, times)

    def _AttrStmt(self, node: Any, times: int) -> None:  # noqa: ANN401, N802
        if node.attr_key == "thread_extent":
            variable = node.node.var
            for place, analyzer in self._places.items():
                at = int(place == str(node.node.thread_tag) and self._launch[place] > 1)
                analyzer.bind(variable, tvm.tirx.IntImm(str(variable.ty.dtype), at))
        self._statement(node.body, times)

    def _For(self, node: Any, times: int) -> None:  # noqa: ANN401, N802
        extent = _known(node.extent)
        for analyzer in self._places.values():
            analyzer.bind(node.loop_var, node.min)
        self._turns += 0 if node.kind in _NO_LOOP else times * extent
        self._statement(node.body, times * extent)

    def _IfThenElse(self, node: Any, times: int) -> None:  # noqa: ANN401, N802
        self._expression(node.condition, times)
        self._statement(node.then_case, times)
        if node.else_case is not None:
            self._statement(node.else_case, times)

    def _DeclBuffer(self, node: Any, times: int) -> None:  # noqa: ANN401, ARG002, N802
        self._sizes[_name(node.data)] = _size_bytes(node.buffer)
        self._roots[node.buffer.name] = _name(node.data)

    def _AllocBuffer(self, node: Any, times: int) -> None:  # noqa: ANN401, ARG002, N802
        size = _size_bytes(node.buffer)
        if str(node.buffer.scope()).startswith("shared"):
            self._shared += size
        else:
            self._local += size

    def _Bind(self, node: Any, times: int) -> None:  # noqa: ANN401, N802
        self._expression(node.value, times)
        for analyzer in self._places.values():
            analyzer.bind(node.var, analyzer.simplify(node.value))

    def _Evaluate(self, node: Any, times: int) -> None:  # noqa: ANN401, N802
        if operator_name(node.value) == "tirx.tvm_storage_sync":
            self._barriers += times
        elif operator_name(node.value) == _TEXTURE_STORE:
            *_, value = node.value.args
            self._expression(value, times)
            self._texture(node.value, int(value.ty.dtype.lanes), times, store=True)
        else:
            self._expression(node.value, times)

    def _BufferStore(self, node: Any, times: int) -> None:  # noqa: ANN401, N802
        self._expression(node.value, times)
        self._access(node.buffer, node.indices, times, store=True)

    def _expression(self, expr: Any, times: int) -> None:  # noqa: ANN401
        """Count one statement's loads and arithmetic; what it says twice, a compiler computes once."""
        seen: set[int] = set()

        def is_new(node: Any) -> bool:  # noqa: ANN401
            key = tvm_ffi.structural_hash(node)
            return not (key in seen or seen.add(key))  # type: ignore[func-returns-value]

        def load(node: Any) -> None:  # noqa: ANN401
            if not is_new(node):
                return
            self._access(node.source, node.indices, times, store=False)

        def arithmetic(node: Any) -> None:  # noqa: ANN401
            lanes, is_float = _lanes(node)
            self._flops += lanes * times if is_float and is_new(node) else 0

        def call(node: Any) -> None:  # noqa: ANN401
            name = getattr(node.op, "name", "")
            if name == _TEXTURE_LOAD:
                if is_new(node):
                    self._texture(node, int(node.ty.dtype.lanes), times, store=False)
            elif name not in _NO_ARITHMETIC:
                arithmetic(node)

        visitors: list[Any] = [(kind, arithmetic) for kind in _ARITHMETIC]
        tvm_ffi.structural_walk(expr, [(tvm.ir.TensorLoad, load), (tvm.ir.Call, call), *visitors])

    def _access(self, buffer: Any, indices: Any, times: int, *, store: bool) -> None:  # noqa: ANN401
        scope = str(buffer.scope())
        if scope not in ("", "global") and not scope.startswith("shared"):
            return  # a thread's own array: registers
        element, packed = buffer.dtype.bits // 8, int(buffer.dtype.lanes)
        index = indices[-1]
        lanes = 1
        if isinstance(index, tvm.tirx.Ramp):
            # Elements apart are as many instructions.
            apart = not _is_one(index.stride)
            times, lanes = (times * int(index.lanes), 1) if apart else (times, int(index.lanes))
            index = index.base
        step = element * packed
        access = Access(
            buffer=self._root(buffer),
            store=store,
            shared=scope.startswith("shared"),
            element_bytes=element,
            vector=lanes * packed,
            per_thread=0,
            strides_bytes=self._strides(index, step),
        )
        self._accesses[access] += times

    def _texture(self, call: Any, lanes: int, times: int, *, store: bool) -> None:  # noqa: ANN401
        """Count an access to a texel.

        Raises:
            NotImplementedError: a store of less than a texel, which fills it all the same (docs/vendor_bugs.md, Apache
                TVM 26), or a load of a whole one that does not begin with its first element.
        """
        buffer = _name(call.args[0])
        name = self._roots.get(buffer, buffer)
        _, rows, row, texel = self._images[name]
        column, line, depth, bits = call.args[1:5]
        if store and lanes != texel:
            raise NotImplementedError(f"TVM writes {lanes} of a texel's {texel} elements to {name}")
        at = call.args[5]
        if not store and lanes == texel and not (isinstance(at, tvm.tirx.Ramp) and _is_zero(at.base)):
            raise NotImplementedError(f"TVM reads {name} across texels")
        element = int(bits) // texel // 8
        access = Access(
            buffer=name,
            store=store,
            shared=False,
            element_bytes=element,
            vector=lanes,
            per_thread=0,
            strides_bytes=self._strides((depth * rows + line) * row + column, texel * element),
            texture=True,
        )
        self._accesses[access] += times

    def _strides(self, index: Any, step: int) -> tuple[int, int]:  # noqa: ANN401
        return self._stride(index, "threadIdx.x", step), self._stride(index, "threadIdx.y", step)

    def _stride(self, index: Any, axis: str, step: int) -> int:  # noqa: ANN401
        """Return how many bytes the index moves from the first thread of an axis to the second."""
        first, second = (self._places[place].simplify(index) for place in ("", axis))
        if isinstance(first, tvm.tirx.IntImm) and isinstance(second, tvm.tirx.IntImm):
            return (int(second) - int(first)) * step
        return _SCATTERED

    def _root(self, buffer: Any) -> str:  # noqa: ANN401
        return self._roots.get(str(buffer.name), str(buffer.name))


def _name(data: Any) -> str:  # noqa: ANN401
    """Return the name of the buffer behind a pointer: a variable, or `buffer.data`."""
    return str(data.name if isinstance(data, tvm.ir.Var) else data.args[0].name)


def _shape(buffer: Any) -> tuple[int, ...]:  # noqa: ANN401
    return tuple(_known(extent) for extent in buffer.shape)


def _known(extent: Any) -> int:  # noqa: ANN401
    """Return an extent, which is a number unless it is known at run time only."""
    if not isinstance(extent, int | tvm.tirx.IntImm):
        raise NotImplementedError("facts of a kernel with an extent that is known at run time only are not read")
    return int(extent)


def _size_bytes(buffer: Any) -> int:  # noqa: ANN401
    elements = math.prod(_shape(buffer))
    return elements * int(buffer.dtype.lanes) * ((int(buffer.dtype.bits) + 7) // 8)


def _lanes(expr: Any) -> tuple[int, bool]:  # noqa: ANN401
    kind = getattr(expr.ty, "dtype", None)
    return (int(kind.lanes), str(kind).startswith(("float", "bfloat"))) if kind is not None else (0, False)


def _is_zero(expr: Any) -> bool:  # noqa: ANN401
    return isinstance(expr, tvm.tirx.IntImm) and int(expr) == 0


def _is_one(expr: Any) -> bool:  # noqa: ANN401
    return isinstance(expr, tvm.tirx.IntImm) and int(expr) == 1
