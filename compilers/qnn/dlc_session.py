"""A DLC loaded back without an SDK: compiled for a chip, simulated, and run on the wheel's HTP emulator."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Final

from compilers.adapter import CompilerError, Session
from compilers.qnn.api import ComposedGraph, Event, GraphTensor, Qnn, set_buffer
from compilers.qnn.dlc import DlcTensor, only_graph
from compilers.qnn.layout import TO_CHANNELS_FIRST, TO_CHANNELS_LAST
from compilers.qnn.profile import HEADER, HtpEstimate, read_estimates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np

# Qnn_DataType_t -> numpy, for what a DLC's edge can be here: floats are floats, indices are integers.
_NUMPY: Final = {
    0x0032: "int32",
    0x0064: "int64",
    0x0132: "uint32",
    0x0216: "float16",
    0x0232: "float32",
    0x0508: "bool",
}


class DlcSession(Session):
    """A DLC on the HTP emulator: its outputs count, its times do not. Make it in a child process."""

    on_device: ClassVar[bool] = False

    def __init__(
        self, graph: ComposedGraph, dlc: Path, *, nhwc_inputs: Sequence[str], nhwc_outputs: Sequence[str]
    ) -> None:
        self._graph = graph
        self._nhwc_inputs, self._nhwc_outputs = frozenset(nhwc_inputs), frozenset(nhwc_outputs)
        written = only_graph(dlc)
        self._inputs = _by_written_name(graph.inputs(), written.by_role("input"))
        self._outputs = _by_written_name(graph.outputs(), written.by_role("output"))

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Run once: arrays by name in the layout of the segment's graph, in and out."""
        import numpy as np

        fed = {name: self._feed(name, tensor, inputs) for name, tensor in self._inputs.items()}
        got = {name: np.zeros(tensor.shape, _dtype(tensor)) for name, tensor in self._outputs.items()}
        for tensors, arrays in ((self._inputs, fed), (self._outputs, got)):
            for name, tensor in tensors.items():
                set_buffer(tensor, arrays[name].ctypes.data, arrays[name].nbytes)
        self._graph.execute()
        return {
            name: value.transpose(TO_CHANNELS_FIRST) if name in self._nhwc_outputs else value
            for name, value in got.items()
        }

    def _feed(self, name: str, tensor: GraphTensor, inputs: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        import numpy as np

        if name not in inputs:
            raise CompilerError(f"the DLC has an input {name!r}, and {', '.join(inputs) or 'nothing'} was fed")
        value = inputs[name]
        laid_out = value.transpose(TO_CHANNELS_LAST) if name in self._nhwc_inputs else value
        if laid_out.shape != tensor.shape:
            raise CompilerError(f"the DLC's input {name!r} is {tensor.shape}, and {laid_out.shape} was fed")
        return np.ascontiguousarray(laid_out, _dtype(tensor))


def compose(dlc: Path, *, soc_model: str, vtcm_mb: str, optimisation_mode: str) -> ComposedGraph:
    """Load a DLC with one graph and compose it for a chip.

    Raises:
        CompilerError: the file is no such DLC, the wheel has another API version, or the library refused it.
    """
    graph = only_graph(dlc)
    qnn = Qnn(int(soc_model))
    return qnn.compose(dlc, graph.name, vtcm_mb=int(vtcm_mb), optimisation_mode=int(optimisation_mode))


def estimate_dlc(dlc: Path, soc_model: str, vtcm_mb: str, optimisation_mode: str) -> HtpEstimate:
    """Compile the DLC itself for the chip and return what the compiler's simulator says. Call it in a child process.

    Raises:
        CompilerError: as `compose`, or the chip has no simulator.
    """
    graph = compose(dlc, soc_model=soc_model, vtcm_mb=vtcm_mb, optimisation_mode=optimisation_mode)
    found = read_estimates(_as_csv(graph.finalize()), partitions=1)
    if not found:
        raise CompilerError(f"Qualcomm's compiler holds no simulator of soc_model {soc_model}")
    return found[0]


def _by_written_name(composed: Sequence[GraphTensor], written: Sequence[DlcTensor]) -> dict[str, GraphTensor]:
    """Map the names in the file to the tensors that the library composed, which keep the order and not the names.

    A composed name is the written one as a C identifier, with a number where two of the graph would be the same.

    Raises:
        CompilerError: the two lists do not belong together.
    """
    pairs = list(zip((tensor.name for tensor in written), composed, strict=False))
    if len(written) != len(composed) or not all(_is_identifier_of(tensor.name, name) for name, tensor in pairs):
        raise CompilerError(
            f"the DLC holds {', '.join(tensor.name for tensor in written)}, and Qualcomm's library composed "
            f"{', '.join(tensor.name for tensor in composed)} of them; which is which is not known"
        )
    return dict(pairs)


def _is_identifier_of(identifier: str, name: str) -> bool:
    plain = re.sub(rb"\W", b"_", name.encode()).decode()
    return re.fullmatch(rf"_?{re.escape(plain)}(_\d+)?", identifier) is not None


def _as_csv(events: Sequence[Event]) -> str:
    """Write the profile as the ONNX Runtime provider does, so that one reader checks both."""
    lines = [",".join(HEADER)]
    for event in events:
        level = "SUB-EVENT" if event.depth else "ROOT"
        lines.append(f'0,BACKEND,{event.value},{event.unit},BACKEND,{level},"{event.name}"')
    return "\n".join(lines) + "\n"


def _dtype(tensor: GraphTensor) -> str:
    if tensor.dtype not in _NUMPY:
        raise CompilerError(
            f"the DLC's tensor {tensor.name!r} has dtype 0x{tensor.dtype:04x}, which no array here holds"
        )
    return _NUMPY[tensor.dtype]
