"""Which models a calibration can use, and the normalisation that the measured graphs hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from compilers.ort_session import reference_session
from experiments.calibration.collect import subjects
from experiments.calibration.error import CalibrationError
from experiments.calibration.normalisation import normalise_input
from experiments.calibration.subjects import ZOO_MODELS, folder_subjects
from graphs import random_inputs, save, zoo

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        (
            "imagenet",
            lambda x: (x - np.reshape([0.485, 0.456, 0.406], (3, 1, 1))) / np.reshape([0.229, 0.224, 0.225], (3, 1, 1)),
        ),
        ("symmetric", lambda x: 2 * x - 1),
    ],
)
def test_the_normalisation_is_in_the_graph(kind: str, law: object) -> None:
    graph = zoo.build("squeezenet1_1", size=64)
    feed = random_inputs(graph, 0)
    assert callable(law)
    (name,) = feed
    normalised = normalise_input(graph, kind)
    inside = reference_session(normalised).run(feed)
    outside = reference_session(graph).run({name: law(feed[name]).astype(np.float32)})
    for output, expected in outside.items():
        np.testing.assert_allclose(inside[output], expected, rtol=1e-4, atol=1e-5)
    assert [spec.name for spec in normalised.inputs()] == [name]


def test_only_images_can_be_normalised() -> None:
    with pytest.raises(CalibrationError, match="no image to normalise"):
        normalise_input(zoo.build("whisper_tiny_decoder"), "imagenet")


def test_the_names_of_the_zoo_exist() -> None:
    assert set(ZOO_MODELS) <= set(zoo.names())
    assert {s.model for s in subjects([])} == {measured.model for measured in ZOO_MODELS.values()}


def test_a_folder_names_its_models_after_the_table(tmp_path: Path) -> None:
    save(zoo.build("squeezenet1_1", size=64), tmp_path / "clip__image_encoder.onnx")
    (subject,) = folder_subjects(tmp_path)
    assert subject.model == "clip/image_encoder"
    assert len(subject.load().nodes()) > 10


def test_models_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"holds no \.onnx file"):
        subjects([str(tmp_path)])
    with pytest.raises(CalibrationError, match="no zoo model called 'yolov5s' is one of the measured"):
        subjects(["yolov5s"])
    with pytest.raises(CalibrationError, match=r"'nowhere/net.onnx' is no folder"):
        subjects(["nowhere/net.onnx"])
    (tmp_path / "resnet18.onnx").write_bytes(b"no model")
    with pytest.raises(CalibrationError, match="two of the given models are 'resnet18'"):
        subjects(["resnet18", str(tmp_path)])
    with pytest.raises(CalibrationError, match=r"resnet18\.onnx cannot be used"):
        folder_subjects(tmp_path)[0].load()
