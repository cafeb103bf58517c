"""Run generated OpenCL kernels with pyopencl on whatever OpenCL there is (PoCL is one for CPUs): are they right?

Nothing here is timed. Call it through `compilers.in_child`: an OpenCL driver compiles and runs vendor code.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compilers.adapter import CompilerError, missing_package

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compilers.tvm.gpu_code import HostCode

Array = np.ndarray[Any, Any]

# PoCL's default way to run the threads of a block computes wrong values around barriers, or crashes
# (docs/vendor_bugs.md, PoCL): this one writes out the threads one after the other.
_POCL: Final = {"POCL_WORK_GROUP_METHOD": "workitemrepl"}


def why_not() -> str | None:
    """Return None when kernels can be run here, else what is missing; imports nothing."""
    return missing_package("pyopencl", "edgefrontier[opencl]")


def run_function(source: str, code: HostCode, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Run the kernels of one function in order; `arrays` are its parameters by name, outputs included.

    Returns all parameters as they are afterwards.

    Raises:
        CompilerError: there is no OpenCL platform, or the driver refused the source.
    """
    for name, value in _POCL.items():
        os.environ.setdefault(name, value)
    import pyopencl as cl

    platforms = cl.get_platforms()
    if not platforms:
        raise CompilerError("pyopencl finds no OpenCL platform; install pocl-binary-distribution or a GPU's driver")
    context = cl.Context([platforms[0].get_devices()[0]])
    queue = cl.CommandQueue(context)
    try:
        program = cl.Program(context, source).build()
    except cl.RuntimeError as error:
        raise CompilerError(
            f"OpenCL does not build the kernels: {str(error).splitlines()[0]}", log=str(error)
        ) from error
    flags = cl.mem_flags.READ_WRITE
    buffers = {name: cl.Buffer(context, flags, array.nbytes) for name, array in arrays.items()}
    buffers |= {name: cl.Buffer(context, flags, size) for name, size in code.temporaries}
    for name, array in arrays.items():
        cl.enqueue_copy(queue, buffers[name], np.ascontiguousarray(array))
    for launch in code.launches:
        kernel = launch.kernel
        grid = tuple(n * b for n, b in zip(kernel.grid, kernel.block, strict=True))
        arguments = [buffers[name] for name in launch.arguments]
        getattr(program, kernel.name)(queue, grid, kernel.block, *arguments)
    after = {name: np.empty_like(array) for name, array in arrays.items()}
    for name, array in after.items():
        cl.enqueue_copy(queue, array, buffers[name])
    queue.finish()
    return after
