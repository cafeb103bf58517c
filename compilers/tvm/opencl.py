"""Run and time generated OpenCL kernels with pyopencl on the device that OpenCL finds on this machine.

A GPU where there is one, else what there is (PoCL is one for CPUs, which shows whether kernels are right). No TVM here,
whose wheel has no runtime for OpenCL. Use it in a child process: an OpenCL driver compiles and runs vendor code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compilers.adapter import CompilerError, Session, StartError, missing_package
from compilers.profile import KernelTime, shortest
from compilers.tvm.gpu_code import HostCode, Program, Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from compilers.tvm.gpu_code import Launch

Array = np.ndarray[Any, Any]

# PoCL's default way to run the threads of a block computes wrong values around barriers, or crashes
# (docs/vendor_bugs.md, PoCL): this one writes out the threads one after the other. Its cache forgets kernels.
_POCL: Final = {"POCL_WORK_GROUP_METHOD": "workitemrepl", "POCL_KERNEL_CACHE": "0"}
# PoCL makes folders of kernels' names, and a file system has a limit (docs/vendor_bugs.md, PoCL).
_LONGEST: Final = 100
_LONG: Final = re.compile(rf"\w{{{_LONGEST + 1},}}")
_HALF: Final = "cl_khr_fp16"
PROGRAM_FILE: Final = "program.json"
WEIGHTS_FILE: Final = "weights.npz"


def why_not() -> str | None:
    """Return None when kernels can be run here, else what is missing; imports nothing."""
    return missing_package("pyopencl", "edgefrontier[opencl]")


def answering() -> str:
    """Return the device that answers, with its driver.

    Raises:
        StartError: none does.
    """
    return str(Machine().found)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The OpenCL device that answers; `kind` is what it says it is: "gpu", "cpu" or "accelerator"."""

    name: str
    kind: str
    driver: str
    extensions: frozenset[str]

    def __str__(self) -> str:
        said = "" if self.kind == "gpu" else f", which says it is a {self.kind}"
        return f"{self.name} (OpenCL, driver {self.driver}){said}"


class Machine:
    """The device with a context of its own."""

    def __init__(self) -> None:
        """Find the device.

        Raises:
            StartError: no OpenCL platform or no device answers.
        """
        for name, value in _POCL.items():
            os.environ.setdefault(name, value)
        import pyopencl as cl

        self._cl = cl
        self._device = _first_device(cl)
        self._context = cl.Context([self._device])
        self.found = Found(
            name=str(self._device.name).strip(),
            kind=_kind(cl, self._device),
            driver=str(self._device.driver_version).strip(),
            extensions=frozenset(str(self._device.extensions).split()),
        )

    def build(self, source: str) -> Any:  # noqa: ANN401
        """Have the driver compile the kernels.

        Raises:
            CompilerError: it refuses them.
        """
        if _HALF in source and _HALF not in self.found.extensions:
            raise CompilerError(f"{self.found} has no float16 ({_HALF}); ask for fp32")
        try:
            return self._cl.Program(self._context, _LONG.sub(lambda found: _short(found[0]), source)).build()
        except self._cl.RuntimeError as error:
            raise CompilerError(
                f"OpenCL does not build the kernels: {str(error).splitlines()[0]}", log=str(error)
            ) from error

    def queue(self, *, timed: bool) -> Any:  # noqa: ANN401
        """Return a queue that runs in order, whose events hold times when it is `timed`."""
        properties = self._cl.command_queue_properties.PROFILING_ENABLE if timed else 0
        return self._cl.CommandQueue(self._context, properties=properties)

    @contextlib.contextmanager
    def calling(self, what: str) -> Iterator[None]:
        """Say what the driver refused."""
        try:
            yield
        except self._cl.Error as error:
            raise CompilerError(f"{self.found} could not {what}: {error}") from error

    def buffer(self, size_bytes: int) -> Any:  # noqa: ANN401
        """Allocate global memory.

        Raises:
            CompilerError: the device has not as much.
        """
        with self.calling(f"give a buffer of {size_bytes} bytes"):
            return self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, max(1, size_bytes))

    def image(self, value: Value) -> Any:  # noqa: ANN401
        """Allocate a texture.

        Raises:
            CompilerError: the device has none of its size or type.
        """
        cl, (slices, rows, row, _) = self._cl, value.shape
        kinds = {"float32": cl.channel_type.FLOAT, "float16": cl.channel_type.HALF_FLOAT}
        form = cl.ImageFormat(cl.channel_order.RGBA, kinds[value.dtype])
        with self.calling(f"give a texture of {slices} times {rows} times {row} texels of {value.dtype}"):
            return cl.create_image(
                self._context, cl.mem_flags.READ_WRITE, form, shape=(row, rows, slices), is_array=True
            )

    def fill(self, queue: Any, value: Value, to: Any, array: Array) -> None:  # noqa: ANN401
        """Copy an array to the memory of a value."""
        if not value.texture:
            self.copy(queue, to, array)
            return
        slices, rows, row, _ = value.shape
        self._cl.enqueue_copy(queue, to, array, origin=(0, 0, 0), region=(row, rows, slices), is_blocking=True)

    def copy(self, queue: Any, to: Any, source: Any, *, wait: bool = True) -> None:  # noqa: ANN401
        """Copy between an array and a buffer."""
        self._cl.enqueue_copy(queue, to, source, is_blocking=wait)

    def bound(self, program: Any, launch: Launch, buffers: Mapping[str, Any]) -> _Bound:  # noqa: ANN401
        """Return a launch with its arguments, which the caller keeps alive: OpenCL does not."""
        kernel = self._cl.Kernel(program, _short(launch.kernel.name))
        kernel.set_args(*(buffers[name] for name in launch.arguments))
        sizes = zip(launch.kernel.grid, launch.kernel.block, strict=True)
        threads = tuple(blocks * threads for blocks, threads in sizes)
        return _Bound(enqueue=self._cl.enqueue_nd_range_kernel, kernel=kernel, threads=threads, launch=launch)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Bound:
    enqueue: Any
    kernel: Any
    threads: tuple[int, ...]
    launch: Launch

    def start(self, queue: Any) -> Any:  # noqa: ANN401
        """Enqueue the launch and return its event."""
        return self.enqueue(queue, self.kernel, self.threads, self.launch.kernel.block)


def run_function(source: str, code: HostCode, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Run the kernels of one function in order; `arrays` are its parameters by name, outputs included.

    Returns all parameters as they are afterwards.

    Raises:
        CompilerError: there is no OpenCL platform, or the driver refused the source.
    """
    machine = Machine()
    program, queue = machine.build(source), machine.queue(timed=False)
    buffers = {name: machine.buffer(array.nbytes) for name, array in arrays.items()}
    buffers |= {name: machine.buffer(size) for name, size in code.temporaries}
    for name, array in arrays.items():
        machine.copy(queue, buffers[name], np.ascontiguousarray(array))
    for launch in code.launches:
        machine.bound(program, launch, buffers).start(queue)
    after = {name: np.empty_like(array) for name, array in arrays.items()}
    for name, array in after.items():
        machine.copy(queue, array, buffers[name])
    return after


class OpenClSession(Session):
    """All kernels of a graph on the OpenCL device; a run copies its inputs there and its outputs back."""

    def __init__(self, folder: Path, source: str, names: tuple[Sequence[str], Sequence[str]]) -> None:
        """Load what `gpu.export_for_opencl` wrote; `names` are those of the graph's inputs and outputs, in order.

        Raises:
            CompilerError: no OpenCL device answers, or it refuses the kernels.
        """
        self._machine: Machine | None = Machine()
        self._program = Program.from_json(json.loads((folder / PROGRAM_FILE).read_text(encoding="utf-8")))
        rows = json.loads((folder / "kernels.json").read_text(encoding="utf-8"))
        self._code = {row["function"]: HostCode.from_json(row) for row in rows}
        self._nodes = {row["function"]: row["nodes"] for row in rows}
        inputs, outputs = names
        self._inputs = dict(zip(inputs, self._program.inputs, strict=True))
        self._outputs = dict(zip(outputs, self._program.outputs, strict=True))
        self._queue = self._machine.queue(timed=False)
        self._values = self._all_values()
        self._buffers = {
            name: self._machine.image(value) if value.texture else self._machine.buffer(value.size_bytes)
            for name, value in self._values.items()
        }
        with np.load(folder / WEIGHTS_FILE) as weights:
            for name in weights.files:
                array = np.ascontiguousarray(weights[name])
                self._machine.fill(self._queue, self._values[name], self._buffers[name], array)
        self._launches = self._bound(self._machine.build((folder / source).read_text(encoding="utf-8")))

    @property
    def found(self) -> Found:
        """The device that runs it."""
        return self._open().found

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once: arrays by input name in, arrays by output name out."""
        machine = self._open()
        outputs = {name: np.empty(value.shape, value.dtype) for name, value in self._outputs.items()}
        with machine.calling("run the kernels"):
            self._send(machine, self._queue, inputs)
            for launches in self._launches:
                for launch in launches:
                    launch.start(self._queue)
            for name, array in outputs.items():
                machine.copy(self._queue, array, self._buffers[self._outputs[name].name], wait=False)
            self._queue.finish()
        return outputs

    def profile(self, inputs: Mapping[str, Array], runs: int) -> tuple[KernelTime, ...]:
        """Return what each call takes by the device's own clock, the shortest of the runs, after one to warm up."""
        machine = self._open()
        queue = machine.queue(timed=True)
        with machine.calling("time the kernels"):
            self._send(machine, queue, inputs)
            found = [self._timed(queue) for _ in range(runs + 1)]
        return shortest(tuple(found[1:]))

    def close(self) -> None:
        """Release the device's memory; a second call does nothing."""
        self._machine, self._launches, self._buffers, self._queue = None, [], {}, None

    def _open(self) -> Machine:
        if self._machine is None:
            raise CompilerError("the OpenCL session is closed; load the artefact again")
        return self._machine

    def _all_values(self) -> dict[str, Value]:
        steps = [value for step in self._program.steps for value in step.arguments]
        return {value.name: value for value in (*self._program.inputs, *steps, *self._program.outputs)}

    def _bound(self, program: Any) -> list[list[_Bound]]:  # noqa: ANN401
        machine, steps = self._open(), []
        for step in self._program.steps:
            code = self._code[step.function]
            values = (self._buffers[value.name] for value in step.arguments)
            buffers = dict(zip(code.parameters, values, strict=True))
            for name, size_bytes in code.temporaries:
                key = f"{step.function} {name}"  # no name of a value has a space
                if key not in self._buffers:
                    self._buffers[key] = machine.buffer(size_bytes)
                buffers[name] = self._buffers[key]
            steps.append([machine.bound(program, launch, buffers) for launch in code.launches])
        return steps

    def _send(self, machine: Machine, queue: Any, inputs: Mapping[str, Array]) -> None:  # noqa: ANN401
        for name, value in self._inputs.items():
            array = np.ascontiguousarray(inputs[name], dtype=value.dtype)
            machine.copy(queue, self._buffers[value.name], array)

    def _timed(self, queue: Any) -> tuple[KernelTime, ...]:  # noqa: ANN401
        events = [[launch.start(queue) for launch in launches] for launches in self._launches]
        queue.finish()
        turns: dict[str, int] = {}
        calls = []
        for step, its in zip(self._program.steps, events, strict=True):
            turn = turns[step.function] = turns.get(step.function, -1) + 1
            time_s = sum(event.profile.end - event.profile.start for event in its) * 1e-9
            calls.append(KernelTime(kernel=step.function, nodes=tuple(self._nodes[step.function][turn]), time_s=time_s))
        return tuple(calls)


def _short(name: str) -> str:
    """Return a name that is short enough, another for another name."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 13]}_{digest}"


def _first_device(cl: Any) -> Any:  # noqa: ANN401
    """Return the first GPU of all platforms, else the first device."""
    try:
        devices = [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error:  # the loader's way to say that there is no platform
        devices = []
    if not devices:
        raise StartError(
            "pyopencl finds no OpenCL device; install the driver of the GPU, or pocl-binary-distribution for this CPU"
        )
    return min(devices, key=lambda device: _kind(cl, device) != "gpu")


def _kind(cl: Any, device: Any) -> str:  # noqa: ANN401
    kinds = {"gpu": cl.device_type.GPU, "cpu": cl.device_type.CPU}
    return next((name for name, bit in kinds.items() if device.type & bit), "accelerator")
