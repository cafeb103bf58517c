"""Export models by Qualcomm's own definitions, for `experiments.calibrate --models`.

Usage: python benchmarks/export_hub_definitions.py FOLDER [NAME ...]

Needs the PyPI packages `qai-hub-models` (BSD-3; 0.65 was used), for the YOLO models `ultralytics` (AGPL-3; 8.4) and
`torchmetrics`, for YOLOX `yolox` 0.3 and for EasyOCR `easyocr` 1.7 (both --no-deps), for MiniLM `transformers` 4.56 and
`scikit-learn`, in an environment of their own: they pin other versions of much that this project uses. Nothing is
downloaded, the models start untrained.
The package also holds measurements (`perf.yaml`); nothing here opens them.

Prints the nodes and the parameters of each folded graph. The nodes must be near the layers that the table gives for
the float model, the parameters those of the model's `manifest.yaml`: that is how to tell, without a latency, that what
is exported is what was measured.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import inspect
import math
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import MagicMock, patch

import onnx
import onnxruntime
import torch
from export_hub_models import attention, fill_pads, flatten_products
from hub_repository_networks import InpaintGenerator, YoloBody
from torch import nn
from torch.nn import functional

NAMES = (
    "aotgan", "easyocr__detector", "face_attrib_net", "face_det_lite", "fastsam_s", "fastsam_x", "gear_guard_net",
    "mediapipe_hand_gesture__canned_gesture_classifier", "mediapipe_hand_gesture__hand_landmark_detector", "minilm_v2",
    "real_esrgan_x4plus", "yolo26_det", "yolo26_pose", "yolo26_seg", "yolo_world__detector",
    "yolov11_pose", "yolov11_seg", "yolov3", "yolov4", "yolov8_det", "yolov8_obb", "yolov9_det", "yolox",
)  # fmt: skip
# Classes of the data that a task's published weights are trained on (DOTA, people of COCO); the others have COCO's 80.
CLASSES = {"-obb": 15, "-pose": 1}
# Published settings of a checkpoint on Hugging Face, where they are not its class's defaults.
SETTINGS: dict[str, dict[str, Any]] = {
    "sentence-transformers/all-MiniLM-L6-v2": {
        "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536,
    },
    "distilbert/distilbert-base-uncased": {},
}  # fmt: skip
# Which configuration a checkpoint has, for the classes of `transformers` that take any.
KINDS = {"all-MiniLM": "Bert", "distilbert": "DistilBert"}


class Keys(NamedTuple):
    """What `load_state_dict` returns: nothing missing."""

    missing_keys: tuple[str, ...] = ()
    unexpected_keys: tuple[str, ...] = ()


class Flat(nn.Module):
    """A model whose outputs are one flat tuple."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(_tensors(self.model(*inputs)))


def main(arguments: list[str]) -> int:
    """Export the named models, or all, into the folder."""
    warnings.simplefilter("ignore")
    folder, names = Path(arguments[0]), arguments[1:] or list(NAMES)
    folder.mkdir(parents=True, exist_ok=True)
    _start_untrained()
    for name in names:
        torch.manual_seed(0)
        graph = _export(_definition(name), folder / f"{name}.onnx")
        parameters = sum(math.prod(weight.dims) for weight in graph.initializer)
        print(f"{name}: {len(graph.node)} nodes, {parameters / 1e6:.3g} million parameters", flush=True)
    return 0


def _start_untrained() -> None:
    """Let the definitions build their networks and find no weights to load."""
    from qai_hub_models.utils import asset_loaders

    nothing: Any = collections.defaultdict(dict)
    torch.load = lambda *_, **__: nothing
    asset_loaders.load_torch = lambda *_, **__: nothing
    asset_loaders.CachedWebModelAsset.fetch = lambda *_, **__: Path("/dev/null")
    nn.Module.load_state_dict = lambda *_, **__: Keys()
    _without_repositories()
    with contextlib.suppress(ImportError):
        _untrained_yolo()
    with contextlib.suppress(ImportError):
        _untrained_transformers()
    with contextlib.suppress(ImportError):
        _untrained_craft()


def _without_repositories() -> None:
    """Let modules import that need a repository from GitHub for other networks than those that are exported."""
    parent = "qai_hub_models.models.templates.mediapipe.external_repos"
    for name in ("", ".mediapipe", ".mediapipe.blazehand_landmark", ".mediapipe.blazepalm"):
        sys.modules[parent + name] = MagicMock()
    for name in ("clip", "clip.clip", "clip.model", "skimage", "skimage.metrics"):
        sys.modules[name] = MagicMock()
    models, own = "qai_hub_models.models", MagicMock(InpaintGenerator=InpaintGenerator, YoloBody=YoloBody)
    sys.modules[f"{models}.aotgan.external_repos.aotgan.src.model.aotgan"] = own
    sys.modules[f"{models}.yolov4.external_repos.yolov4.nets.yolo"] = own


def _untrained_yolo() -> None:
    from ultralytics.engine.model import Model
    from ultralytics.nn.tasks import SegmentationModel

    def build(self: Any, weights: str, task: str | None = None) -> None:  # noqa: ANN401 - a class of another package
        if "FastSAM-" in str(weights):  # a YOLOv8 for one class of masks
            self.task, self.model = "segment", SegmentationModel(f"yolov8{weights[8]}-seg.yaml", nc=1, verbose=False)
            return
        file = str(weights).replace(".pt", ".yaml")
        self._new(file, task=task)
        classes = next((number for part, number in CLASSES.items() if part in file), None)
        if classes:
            self.model = self._smart_load("model")(file, nc=classes, verbose=False)

    setattr(Model, "_load", build)  # noqa: B010 - the one place where a YOLO looks for its weights


def _untrained_craft() -> None:
    for name in ("bidi", "bidi.algorithm", "pyclipper", "shapely.geometry", "skimage"):  # not for the network
        sys.modules.setdefault(name, MagicMock())
    from easyocr import easyocr
    from easyocr.craft import CRAFT

    easyocr.Reader = lambda *_, **__: MagicMock(detector=CRAFT(pretrained=False))


def _untrained_transformers() -> None:
    import transformers

    def build(cls: Any, name: str) -> nn.Module:  # noqa: ANN401 - a class of another package
        config = getattr(cls, "config_class", None)
        if config is None:
            kind = next(kind for part, kind in KINDS.items() if part in name)
            return cls.from_config(getattr(transformers, f"{kind}Config")(**SETTINGS[name]))
        return cls(config(**SETTINGS[name]))

    for found in (transformers.AutoModel, transformers.AutoModelForMaskedLM, transformers.PreTrainedModel):
        found.from_pretrained = classmethod(build)
    for tokenizer in (transformers.AutoTokenizer, transformers.PreTrainedTokenizerBase):
        tokenizer.from_pretrained = MagicMock()


def _definition(name: str) -> nn.Module:
    from qai_hub_models.utils.base_model import BaseModel

    network, _, component = name.partition("__")
    module = importlib.import_module(f"qai_hub_models.models.{network}.model")
    defined = [c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__]
    named = {c.__name__.lower(): c for c in defined if issubclass(c, BaseModel)}
    (definition,) = (c for known, c in named.items() if known.endswith(component.replace("_", "")))
    model: nn.Module = definition.from_pretrained()
    return model.eval()


def _export(model: nn.Module, path: Path) -> onnx.GraphProto:
    from qai_hub_models.utils.input_spec import make_torch_inputs

    spec = model.get_input_spec()
    with torch.no_grad(), patch.object(functional, "scaled_dot_product_attention", attention):
        torch.onnx.export(
            Flat(model).eval(), tuple(make_torch_inputs(spec)), str(path), input_names=list(spec), opset_version=17,
            dynamo=False,
        )  # fmt: skip
    _fold(path)
    fill_pads(path)
    flatten_products(path)
    _fold(path)
    return onnx.load(path).graph


def _fold(path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])


def _tensors(found: object) -> list[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        return [found]
    assert isinstance(found, dict | tuple | list), found
    parts = found.values() if isinstance(found, dict) else found
    return [tensor for part in parts for tensor in _tensors(part)]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
