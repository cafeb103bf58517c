"""Export models by Qualcomm's own definitions, for `experiments.calibrate --models`.

Usage: python benchmarks/export_hub_definitions.py FOLDER [NAME ...]

Needs the PyPI packages `qai-hub-models` (BSD-3; 0.65 was used) and, for the YOLO models, `ultralytics` (AGPL-3; 8.4),
in an environment of their own: they pin other versions of much that this project uses. Nothing is downloaded, the
models start untrained. The package also holds measurements (`perf.yaml`); nothing here opens them.

Prints the nodes of each folded graph. They must be near the layers that the table gives for the float model: that is
how to tell, without a latency, that what is exported is what was measured.
"""

from __future__ import annotations

import collections
import importlib
import inspect
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import onnxruntime
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

NAMES = (
    "face_attrib_net", "face_det_lite", "gear_guard_net", "yolo26_det", "yolov11_pose", "yolov3", "yolov8_det",
    "yolov9_det",
)  # fmt: skip


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
        nodes = _export(_definition(name), folder / f"{name}.onnx")
        print(f"{name}: {nodes} nodes", flush=True)
    return 0


def _start_untrained() -> None:
    """Let the definitions build their networks and find no weights to load."""
    from qai_hub_models.utils import asset_loaders

    nothing: Any = collections.defaultdict(dict)
    torch.load = lambda *_, **__: nothing
    asset_loaders.load_torch = lambda *_, **__: nothing
    asset_loaders.CachedWebModelAsset.fetch = lambda *_, **__: Path("/dev/null")
    nn.Module.load_state_dict = lambda *_, **__: Keys()
    try:
        from ultralytics.engine.model import Model
    except ImportError:
        return

    def build(self: Any, weights: str, task: str | None = None) -> None:  # noqa: ANN401 - a class of another package
        self._new(str(weights).replace(".pt", ".yaml"), task=task)

    setattr(Model, "_load", build)  # noqa: B010 - the one place where a YOLO looks for its weights


def _definition(name: str) -> nn.Module:
    from qai_hub_models.utils.base_model import BaseModel

    module = importlib.import_module(f"qai_hub_models.models.{name}.model")
    defined = [c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__]
    (definition,) = (c for c in defined if issubclass(c, BaseModel))
    model: nn.Module = definition.from_pretrained()
    return model.eval()


def _export(model: nn.Module, path: Path) -> int:
    from qai_hub_models.utils.input_spec import make_torch_inputs

    spec = model.get_input_spec()
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        torch.onnx.export(
            Flat(model).eval(), tuple(make_torch_inputs(spec)), str(path), input_names=list(spec), opset_version=17,
            dynamo=False,
        )  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    return len(onnx.load(path).graph.node)


def _tensors(found: object) -> list[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        return [found]
    assert isinstance(found, dict | tuple | list), found
    parts = found.values() if isinstance(found, dict) else found
    return [tensor for part in parts for tensor in _tensors(part)]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
