"""The models that a table measured and that we can compile: the zoo's, or a folder of ONNX files."""

from __future__ import annotations

import dataclasses
import hashlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, NamedTuple

from experiments.calibration.error import CalibrationError
from experiments.calibration.normalisation import normalise_input
from experiments.calibration.norms import float_norms
from graphs import Calibration, Graph, GraphError, load, quantise, save, zoo

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path


class Measured(NamedTuple):
    """A zoo model as the table's owner measured it: model id, how the graph normalises its images, their size."""

    model: str
    normalisation: str = "imagenet"
    size: int = 224


# Only models that are the same network in both. The hub's shufflenet_v2 has half the zoo's width, its regnet,
# mobile_vit and yolov5 are other variants, and its whisper has no measurement in a runtime that we simulate. Sizes and
# normalisations are those of the hub's model definitions (github.com/quic/ai-hub-models, BSD-3).
ZOO_MODELS: Final = {
    "convnext_tiny": Measured("convnext_tiny"),
    "densenet121": Measured("densenet121"),
    "efficientformer_l1": Measured("efficientformer"),
    "googlenet": Measured("googlenet", "symmetric"),
    "inception_v3": Measured("inception_v3", "symmetric", 299),
    "mobilenet_v2": Measured("mobilenet_v2"),
    "mobilenet_v3_large": Measured("mobilenet_v3_large"),
    "mobilenet_v3_small": Measured("mobilenet_v3_small"),
    "resnet18": Measured("resnet18"),
    "resnet50": Measured("resnet50"),
    "squeezenet1_1": Measured("squeezenet1_1"),
    "swin_tiny": Measured("swin_tiny"),
    "vit_b_16": Measured("vit"),
}
# Precision of a segment or calibration -> recipe of graphs.quantise; None takes the float graph as it is.
RECIPES: Final = {"fp16": None, "int8": "int8", "w8a16": "w8a16"}
_COMPONENT: Final = "__"  # <model>__<component>.onnx: "/" cannot stand in a file name
_BATCHES: Final = 2
# raise it when `graphs.quantise` or `float_norms` writes another graph: the cache of `variant` has the old one
_QUANTISER: Final = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """A model under its name in the table; `load` gives the float graph as the table's owner measured it."""

    model: str
    load: Callable[[], Graph]


def zoo_subjects(names: Collection[str] | None = None) -> tuple[Subject, ...]:
    """Return the zoo's models that have a name in the table, or those of `names` (zoo or table names).

    Raises:
        CalibrationError: a name is none of these.
    """
    known = {zoo_name: measured.model for zoo_name, measured in ZOO_MODELS.items()}
    unknown = sorted(set(names or ()) - set(known) - set(known.values()))
    if unknown:
        raise CalibrationError(
            f"no zoo model called {unknown[0]!r} is one of the measured ones; choose from {', '.join(sorted(known))}, "
            "or give a folder of ONNX files"
        )
    return tuple(
        _zoo_subject(zoo_name) for zoo_name, model in known.items() if names is None or {zoo_name, model} & set(names)
    )


def folder_subjects(folder: Path) -> tuple[Subject, ...]:
    """Return the ONNX files of a folder; `<model>.onnx` or `<model>__<component>.onnx` names the table's model.

    A file is taken as it is: it must hold what was measured, with the normalisation of its input where the table's
    owner has it in the graph.

    Raises:
        CalibrationError: the folder holds no ONNX file.
    """
    files = sorted(folder.glob("*.onnx"))
    if not files:
        raise CalibrationError(f"{folder} holds no .onnx file; name them <model of the table>.onnx")
    return tuple(_file_subject(file) for file in files)


def variant(graph: Graph, precision: str, build: Path) -> Graph:
    """Return the graph to compile for a precision: float as it is, or quantised, from the cache below `build`.

    Raises:
        GraphError: the quantiser cannot take the graph.
    """
    recipe = RECIPES[precision]
    if recipe is None:
        return graph
    data = Calibration.random(graph, _BATCHES, 0)
    key = hashlib.sha256(f"{data.digest}:{version('onnxruntime')}:{_QUANTISER}".encode()).hexdigest()[:12]
    path = build / f"{graph.name}-{graph.digest[:12]}" / f"{recipe}-{key}.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        save(float_norms(quantise(graph, recipe, data), graph), path)
    return load(path)


def unique(subjects: Sequence[Subject]) -> tuple[Subject, ...]:
    """Return the subjects, refusing two for one model of the table.

    Raises:
        CalibrationError: two subjects claim the same model.
    """
    models = [subject.model for subject in subjects]
    twice = next((model for model in models if models.count(model) > 1), None)
    if twice is not None:
        raise CalibrationError(f"two of the given models are {twice!r} of the table; leave one out")
    return tuple(subjects)


def _zoo_subject(name: str) -> Subject:
    measured = ZOO_MODELS[name]
    return Subject(
        model=measured.model,
        load=lambda: normalise_input(zoo.build(name, size=measured.size), measured.normalisation),
    )


def _file_subject(file: Path) -> Subject:
    def read() -> Graph:
        try:
            return load(file)
        except GraphError as error:
            raise CalibrationError(f"{file} cannot be used: {error}") from error

    return Subject(model=file.stem.replace(_COMPONENT, "/"), load=read)
