"""The edge of a segment's graph around a DLC, which has no scalars, no constant outputs and none that is an input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Final

from compilers.adapter import CompilerError, Session

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

    from compilers.artefact import Artefact
    from graphs import Graph

    Array = np.ndarray[Any, Any]

CONSTANTS_FILE: Final = "constant_outputs.npz"
_FACT: Final = "outputs"


def without_inputs_as_outputs(graph: Graph) -> Graph:
    """Return the graph without the outputs that are its inputs as they are: whoever calls it has them.

    Raises:
        CompilerError: no other output is left.
    """
    from graphs import from_proto

    model = graph.proto()
    given = {value.name for value in model.graph.input}
    left = [value for value in model.graph.output if value.name not in given]
    if len(left) == len(model.graph.output):
        return graph
    if not left:
        raise CompilerError("every output of the graph is one of its inputs; there is nothing to compile")
    del model.graph.output[:]
    model.graph.output.extend(left)
    return from_proto(model, name=graph.name, base_dir=graph.base_dir)


def write_constants(graph: Graph, there: set[str], folder: Path) -> tuple[str, ...]:
    """Write the outputs that a DLC lacks, because no input decides them, to `folder`; name the file, if there is one.

    `there` are the outputs that it has.

    Raises:
        CompilerError: one that it lacks does depend on the inputs.
    """
    import numpy as np

    from compilers.ort_session import reference_session
    from graphs import fixed_outputs, random_inputs

    inputs = {spec.name for spec in graph.inputs()}
    lost = [spec.name for spec in graph.outputs() if spec.name not in there | inputs]
    if not lost:
        return ()
    fixed = fixed_outputs(graph)
    for name in lost:
        if name not in fixed:
            raise CompilerError(
                f"the DLC that Qualcomm's library wrote lacks the output {name!r}, which is no constant"
            )
    found = reference_session(graph).run(random_inputs(graph, 0))
    np.savez(folder / CONSTANTS_FILE, *(found[name] for name in lost))
    return (CONSTANTS_FILE,)


def facts(graph: Graph, there: set[str]) -> tuple[tuple[str, str], ...]:
    """Note the graph's outputs with their shapes, and in which order the constants lie in their file."""
    inputs = {spec.name for spec in graph.inputs()}
    outputs = {spec.name: spec.shape for spec in graph.outputs()}
    lost = [name for name in outputs if name not in there | inputs]
    return ((_FACT, json.dumps(outputs)), ("constant_outputs", json.dumps(lost)))


def constants(artefact: Artefact) -> dict[str, Array]:
    """Return the outputs that no input decides, which the DLC itself does not give."""
    import numpy as np

    names = json.loads(artefact.fact("constant_outputs"))
    if not names:
        return {}
    with np.load(artefact.directory / CONSTANTS_FILE) as file:
        return {name: file[f"arr_{number}"] for number, name in enumerate(names)}


class EdgeSession(Session):
    """Gives what the segment's graph gives, in its shapes, from a session of the DLC."""

    on_device: ClassVar[bool] = False

    def __init__(self, inner: Session, artefact: Artefact) -> None:
        self._inner = inner
        self._shapes: dict[str, list[int] | None] = json.loads(artefact.fact(_FACT))
        self._constants = constants(artefact)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once: arrays by name in the layout of the segment's graph, in and out."""
        got = self._inner.run({name: value if value.ndim else value.reshape(1) for name, value in inputs.items()})
        every = {**inputs, **self._constants, **got}
        return {
            name: every[name] if shape is None else every[name].reshape(shape) for name, shape in self._shapes.items()
        }

    def close(self) -> None:
        """Release what the session of the DLC holds."""
        self._inner.close()
