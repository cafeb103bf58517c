"""What a device computes: the inputs that go there with the payload, and its outputs against the reference."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from compilers import get_compiler
from experiments.deployment.bundle import OUTPUT_TOOLS, Bundled, folder_name, judged
from experiments.evaluator.fidelity import Feed, output_error
from graphs import GraphError, load_tensor, save_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from graphs import OutputError
    from partition import Plan

# Where `onnx_test_runner` looks for a model's inputs, beside it, and what it calls its outputs.
DATA: Final = "test_data_set_0"
INPUT_LIST: Final = "inputs.txt"
# A DLC's images are channels-last outside; its artefact names them.
_CHANNELS_LAST: Final = (0, 2, 3, 1)
_CHANNELS_FIRST: Final = (0, 3, 1, 2)


class _NoneError(Exception):
    """A device left no outputs; the message says why."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """How the device's outputs compare: their error, what makes them wrong ("" when they are right), a remark."""

    error: OutputError | None
    wrong: str
    note: str


def write_inputs(bundled: Sequence[Bundled], payload: Path) -> None:
    """Write what each segment is given in the reference run, as its tool reads it."""
    for index, entry in enumerate(bundled):
        folder = payload / folder_name(index, entry) / DATA
        folder.mkdir()
        if entry.segment.compiler == "snpe":
            _write_raw(entry, folder)
            continue
        for side, tensors in (("input", entry.feed), ("output", entry.expected)):
            for number, (name, values) in enumerate(tensors.items()):
                save_tensor(folder / f"{side}_{number}.pb", name, np.asarray(values))


def _write_raw(entry: Bundled, folder: Path) -> None:
    images = entry.artefact.fact("nhwc_inputs", "").split("\n")
    line = []
    for number, (name, values) in enumerate(entry.feed.items()):
        laid_out = values.transpose(_CHANNELS_LAST) if name in images else values
        (folder / f"{number}.raw").write_bytes(laid_out.astype(np.float32).tobytes())
        line.append(f"{name}:={DATA}/{number}.raw")
    (folder / INPUT_LIST).write_text(" ".join(line) + "\n", encoding="utf-8")


def passed(bundled: Sequence[Bundled]) -> tuple[tuple[int, int, int, int], ...]:
    """List (segment, output, later segment, input), by number, of each tensor that passes between segments."""
    made: dict[str, tuple[int, int]] = {}
    found = []
    for index, entry in enumerate(bundled):
        found += [(*made[name], index, port) for port, name in enumerate(entry.feed) if name in made]
        made.update((name, (index, port)) for port, name in enumerate(entry.expected))
    return tuple(found)


def compared(plan: Plan, bundled: Sequence[Bundled], results: Path, reference: Feed | None) -> Compared:
    """Hold the outputs in `results` against those of the float model, or without these against the plan's own graphs'.

    Whether they are right, the plan's own graphs on ONNX Runtime decide: int8 is no float.
    """
    own = {name: values for entry in bundled for name, values in entry.expected.items()}
    names = [spec.name for spec in plan.outputs if spec.name in own]
    try:
        outputs = _outputs(bundled, results)
    except (_NoneError, GraphError) as why:
        return Compared(error=None, wrong="", note=f"outputs were not compared on the device: {why}")
    _, wrong = judged({name: own[name] for name in names}, outputs)
    if wrong:
        return Compared(error=None, wrong=wrong, note="")
    note = "" if reference else "the output error is against the plan's own graphs: its float model is not beside it"
    reference = reference or own
    error = output_error({name: reference[name] for name in names}, {name: outputs[name] for name in names})
    return Compared(error=error, wrong="", note=note)


def _outputs(bundled: Sequence[Bundled], results: Path) -> Feed:
    found: Feed = {}
    for index, entry in enumerate(bundled):
        read = _raw if entry.segment.compiler == "snpe" else _protos
        outputs = read(entry, results / str(index))
        outputs |= get_compiler(entry.segment.compiler).constant_outputs(entry.artefact)
        outputs |= {name: values for name, values in entry.feed.items() if name in entry.expected}
        missing = [name for name in entry.expected if name not in outputs]
        if missing:
            tool = OUTPUT_TOOLS[entry.segment.compiler]
            said = f" ({_last_line(results / f'{index}-outputs.txt')})"
            raise _NoneError(f"{tool} gave no {missing[0]!r} of segment {index}{said}")
        found |= outputs
    return found


def _protos(entry: Bundled, folder: Path) -> Feed:
    """Read the tensors by their names, or by the order of the outputs where they have none."""
    outputs: Feed = {}
    for number, expected in enumerate(entry.expected):
        path = folder / f"actual_output_{number}.pb"
        if path.exists():
            name, values = load_tensor(path)
            outputs[name or expected] = values
    return outputs


def _raw(entry: Bundled, folder: Path) -> Feed:
    outputs: Feed = {}
    images = entry.artefact.fact("nhwc_outputs", "").split("\n")
    for name, expected in entry.expected.items():
        path = folder / f"{name}.raw"
        if path.exists():
            values = np.fromfile(path, np.float32)
            if values.size != np.size(expected):
                raise _NoneError(f"{path.name} holds {values.size} numbers instead of {np.size(expected)}")
            shape = np.shape(expected)
            outputs[name] = (
                values.reshape([shape[axis] for axis in _CHANNELS_LAST]).transpose(_CHANNELS_FIRST)
                if name in images
                else values.reshape(shape)
            )
    return outputs


def _last_line(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")
