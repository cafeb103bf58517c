"""Compare the zoo with the public implementations of torchvision, timm and transformers.

Usage: python benchmarks/zoo_check.py [NAME ...]

Needs the extra `zoo-check` (several GB with torch); nothing is downloaded, the public models start untrained too.
For each model: our weights are put into the public implementation, so equal outputs mean the same architecture in
every detail; parameters and multiply-accumulates are compared with PyTorch's own counts, operators with those of its
ONNX export (both after ONNX Runtime's basic optimisations, which fold away arithmetic on shapes).
Exits 1 if outputs, parameters or multiply-accumulates differ. Operators may: the exporter writes some things in more
nodes than we do. `yolov5s` is in none of these packages and is not compared.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from graphs import random_inputs, save, zoo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from graphs import Graph

    Weights = Mapping[str, np.ndarray]

TOLERANCE = 2e-3
"""Largest difference of an output, relative to its largest value; float32 sums in another order."""


class Public(NamedTuple):
    """A public model, ready to be called with our inputs in our order."""

    module: torch.nn.Module
    rename: Callable[[str], str]
    """Our name of a parameter of the module."""


def main(names: list[str]) -> int:
    """Compare the named models, or all that have a public implementation here."""
    warnings.simplefilter("ignore")
    return max(int(not _compare(name)) for name in names or sorted(_FACTORIES))


def _compare(name: str) -> bool:
    graph = zoo.build(name, **_OPTIONS.get(name, {}))
    public = _FACTORIES[name]()
    public.module.eval()
    missing = _transplant(graph, public)
    inputs = {key: torch.from_numpy(value) for key, value in random_inputs(graph, 0).items()}
    error = _output_error(graph, public.module, inputs)
    macs = _macs(public.module, inputs)
    stated = int({item.key: item.value for item in graph.proto().metadata_props}["published_parameters"])
    parameters = sum(item.numel() for item in public.module.parameters())
    # We count two numbers for each folded batch norm, none for the bias that was put into the module to stand for it.
    parameters -= sum(module.bias.numel() for module in public.module.modules() if hasattr(module, "added_bias"))
    same = not missing and error < TOLERANCE and stated == parameters and graph.macs == macs
    print(f"{name}: {'same' if same else 'DIFFERENT'}")
    print(f"  outputs differ by {error:.1e} of the largest; parameters {stated} and {parameters}", end="")
    print(f"; MACs {graph.macs} and {macs}")
    for key in missing:
        print(f"  public parameter without one of ours: {key}")
    _print_operators(graph, public.module, inputs)
    return same


def _transplant(graph: Graph, public: Public) -> list[str]:
    """Put our weights into the public module; return its parameters that we have no counterpart of."""
    proto = graph.proto()
    ours = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    transposed = {node.input[1] for node in proto.graph.node if node.op_type == "MatMul"}
    missing = []
    for path, module in public.module.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            _fill_batch_norm(module, ours, public.rename(f"{path}."))
            continue
        if isinstance(module, torch.nn.Conv2d) and module.bias is None and public.rename(f"{path}.bias") in ours:
            module.bias = torch.nn.Parameter(torch.zeros(module.out_channels))
            module.added_bias = True
        for key, parameter in module.named_parameters(prefix=path, recurse=False):
            value = ours.get(public.rename(key))
            if value is None:
                missing.append(key)
            else:
                _fill(module, parameter, value.T if public.rename(key) in transposed else value)
    return missing


def _fill_batch_norm(module: torch.nn.BatchNorm2d, ours: Weights, prefix: str) -> None:
    """Copy a batch norm that we keep; make one that we folded do nothing."""
    kept = f"{prefix}running_var" in ours
    values = {
        "weight": ours[f"{prefix}weight"] if kept else 1.0,
        "bias": ours[f"{prefix}bias"] if kept else 0.0,
        "running_mean": ours[f"{prefix}running_mean"] if kept else 0.0,
        "running_var": ours[f"{prefix}running_var"] if kept else 1.0 - module.eps,
    }
    with torch.no_grad():
        for key, value in values.items():
            getattr(module, key).copy_(torch.as_tensor(value))


def _fill(module: torch.nn.Module, parameter: torch.nn.Parameter, value: np.ndarray) -> None:
    """Copy one tensor; biases that we look up for every pair of positions go back into their table."""
    with torch.no_grad():
        if hasattr(module, "relative_position_index") and value.ndim == 4:
            index = module.relative_position_index.reshape(-1)
            parameter[index] = torch.tensor(value[0].reshape(value.shape[1], -1).T)
        elif hasattr(module, "attention_bias_idxs") and value.ndim == 3:
            parameter[:, module.attention_bias_idxs.reshape(-1)] = torch.tensor(value.reshape(value.shape[0], -1))
        elif value.size < parameter.numel():
            parameter[: len(value)] = torch.tensor(value)  # positions that our model does not reach
        else:
            parameter.copy_(torch.tensor(value).reshape(parameter.shape))


def _output_error(graph: Graph, module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> float:
    with torch.no_grad():
        expected = module(*inputs.values()).numpy()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        graph.proto().SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feed = {key: value.numpy() for key, value in inputs.items()}
    output = session.run([graph.outputs()[0].name], feed)[0]
    return float(np.abs(output - expected).max() / np.abs(expected).max())


def _macs(module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> int:
    # With gradients and the plain kernel: otherwise attention runs in fused operators that PyTorch does not count.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(*inputs.values())
    return counter.get_total_flops() // 2


def _print_operators(graph: Graph, module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder) / "ours.onnx", Path(folder) / "theirs.onnx"
        save(graph, ours)
        torch.onnx.export(module, tuple(inputs.values()), str(theirs), opset_version=17, dynamo=False)
        ours_count, theirs_count = _operators(ours), _operators(theirs)
    different = [
        f"{key} {ours_count[key]} and {theirs_count[key]}"
        for key in sorted(ours_count | theirs_count)
        if ours_count[key] != theirs_count[key]
    ]
    print(f"  operators: {'ours and the export have ' + ', '.join(different) if different else 'the same'}")


def _operators(path: Path) -> Counter[str]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path.with_suffix(".optimised.onnx"))
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)


def _torchvision(name: str, rename: Callable[[str], str] = str, **options: bool) -> Public:
    import torchvision

    return Public(torchvision.models.get_model(name, weights=None, **options), rename)


def _without_auxiliary_heads(name: str) -> Public:
    public = _torchvision(name, init_weights=False)
    # The heads run in training only; without them the module's own switch is off as well.
    for head in ("aux1", "aux2", "AuxLogits"):
        if hasattr(public.module, head):
            setattr(public.module, head, None)
    public.module.aux_logits = False
    return public


def _timm(name: str) -> Public:
    import timm

    return Public(timm.create_model(name), str)


class _FirstOutput(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = inner
        self.call = call

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.call(self.inner, *inputs)


def _whisper(half: str) -> Public:
    from transformers import WhisperConfig, WhisperModel

    # The defaults of the configuration are those of the tiny model.
    config = WhisperConfig(attn_implementation="eager", use_cache=False)
    inner = getattr(WhisperModel(config), half)
    return Public(_FirstOutput(inner, _CALLS[half]), lambda name: name.removeprefix("inner."))


def _decode(inner: torch.nn.Module, ids: torch.Tensor, audio: torch.Tensor) -> torch.Tensor:
    # A mask of ones changes nothing; without one, transformers traces operators that have no export.
    states = inner(ids, torch.ones_like(ids), encoder_hidden_states=audio).last_hidden_state
    return states @ inner.embed_tokens.weight.T


_CALLS: dict[str, Callable[..., torch.Tensor]] = {
    "encoder": lambda inner, mel: inner(mel).last_hidden_state,
    "decoder": _decode,
}
_OPTIONS: dict[str, dict[str, int]] = {"whisper_tiny_decoder": {"cache": False}}
_FACTORIES: dict[str, Callable[[], Public]] = {
    "convnext_tiny": partial(_torchvision, "convnext_tiny"),
    "densenet121": partial(_torchvision, "densenet121"),
    "efficientformer_l1": partial(_timm, "efficientformer_l1"),
    "efficientnet_lite0": partial(_timm, "efficientnet_lite0"),
    "googlenet": partial(_without_auxiliary_heads, "googlenet"),
    "inception_v3": partial(_without_auxiliary_heads, "inception_v3"),
    "mobilenet_v2": partial(_torchvision, "mobilenet_v2"),
    "mobilenet_v3_large": partial(_torchvision, "mobilenet_v3_large"),
    "mobilenet_v3_small": partial(_torchvision, "mobilenet_v3_small"),
    "mobilevit_v2": partial(_timm, "mobilevitv2_100"),
    "regnet_y_400mf": partial(_torchvision, "regnet_y_400mf"),
    "resnet18": partial(_torchvision, "resnet18"),
    "resnet50": partial(_torchvision, "resnet50"),
    "shufflenet_v2": partial(_torchvision, "shufflenet_v2_x1_0"),
    "squeezenet1_1": partial(_torchvision, "squeezenet1_1"),
    "swin_tiny": partial(_torchvision, "swin_t", lambda name: name.replace("bias_table", "bias")),
    "vit_b_16": partial(_torchvision, "vit_b_16", lambda name: name.replace("in_proj_", "in_proj.")),
    "whisper_tiny_decoder": partial(_whisper, "decoder"),
    "whisper_tiny_encoder": partial(_whisper, "encoder"),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
