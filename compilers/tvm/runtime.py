"""Load the files of an artefact and run them.

Imports TVM, of which the runtime is enough; only reached through the methods of `TvmCompiler`.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm.runtime.vm import VirtualMachine

from compilers.adapter import CompilerError, Session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compilers.artefact import Artefact

Array = np.ndarray[Any, Any]


def load(artefact: Artefact) -> TvmSession:
    """Load the files of an artefact into a Relax virtual machine."""
    paths = [artefact.directory / name for name in artefact.files]
    if paths[0].suffix == ".so":
        library = tvm.runtime.load_module(str(paths[0]))
    else:
        library = tvm.get_global_func("relax.ExecutableLoadFromFile")(str(paths[0]))
        for path in paths:
            if path.suffix == ".ll":
                library.import_module(tvm.runtime.load_module(str(path)))
    return session(library, artefact)


def session(module: Any, artefact: Artefact) -> TvmSession:  # noqa: ANN401
    """Run a module that is loaded, or an executable that was just built, as the artefact."""
    return TvmSession(module, json.loads(artefact.fact("inputs")), json.loads(artefact.fact("outputs")))


def use_threads(threads: int) -> None:
    """Set the size of TVM's thread pool.

    The environment variable is read when the pool starts; the call lets one that has started use fewer, and gains
    nothing by asking for more. With neither, TVM uses one thread.
    """
    os.environ["TVM_NUM_THREADS"] = str(threads)
    tvm.get_global_func("runtime.config_threadpool")(1, threads)


class TvmSession(Session):
    """A Relax virtual machine behind our interface; inputs are copied into tensors that TVM has aligned.

    `observe` has a function called around each kernel, for good.
    """

    def __init__(self, library: Any, inputs: list[tuple[str, list[int], str]], outputs: list[str]) -> None:  # noqa: ANN401
        device = tvm.cpu()
        machine = VirtualMachine(library, device)
        self.observe = machine.set_instrument
        self._main: Any = machine["main"]
        self._inputs = {name: tvm.runtime.empty(shape, dtype, device) for name, shape, dtype in inputs}
        self._outputs = outputs

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once: arrays by input name in, arrays by output name out."""
        if self._main is None:
            raise CompilerError("the TVM session is closed; load the artefact again")
        for name, tensor in self._inputs.items():
            tensor.copyfrom(inputs[name])
        result = self._main(*self._inputs.values())
        results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        return {name: tensor.numpy() for name, tensor in zip(self._outputs, results, strict=True)}

    def close(self) -> None:
        """Release the machine's memory; a second call does nothing."""
        self._main = None
        self._inputs = {}
