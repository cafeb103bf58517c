"""The vocabulary that the model families share: convolutions with folded batch norm, activations, heads.

Every function takes the `Net` and a `Value` and returns a `Value`; layouts are NCHW for images and
(batch, tokens, channels) for sequences, as PyTorch exports them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from graphs.zoo.builder import BIAS_STD, Net, Value, scaled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

RESIDUAL_DAMPING = 0.5
"""Standard deviation of a residual branch relative to its shortcut: deep sums stay of order 1."""


def make_divisible(value: float, divisor: int = 8, *, tolerance: float = 0.9) -> int:
    """Round a channel count to a multiple of `divisor`, never below `tolerance` of it (MobileNetV2's rule)."""
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < tolerance * value else rounded


def residual_std(shortcut: Value) -> float:
    """Return the standard deviation for the last layer of the branch that is added to `shortcut`."""
    return RESIDUAL_DAMPING * shortcut.rms


# --- convolutions and products -----------------------------------------------------------------------------


def conv(  # noqa: PLR0913 - a convolution has this many settings
    net: Net,
    x: Value,
    channels: int,
    kernel: int | tuple[int, int] = 1,
    *,
    name: str,
    stride: int = 1,
    padding: int | None = None,
    groups: int = 1,
    batch_norm: bool = True,
    bias: bool | None = None,
    std: float = 1.0,
    act: str = "",
) -> Value:
    """Add a convolution over all axes from the third on, then an activation; padding defaults to `kernel // 2`.

    `batch_norm` says that the published layer is followed by a batch norm with two parameters a channel, which
    is folded here into the bias; `bias` whether the published convolution has a bias of its own, by default
    when no batch norm follows.
    """
    sides = x.shape[2:]
    kernels = kernel if isinstance(kernel, tuple) else (kernel,) * len(sides)
    pads = [side // 2 if padding is None else padding for side in kernels]
    shape = (channels, x.shape[1] // groups, *kernels)
    weight = net.normal(shape, std / math.sqrt(math.prod(shape[1:]) * x.variance))
    inputs: list[Value | str] = [x, net.parameter(f"{name}.weight", weight)]
    own_bias = not batch_norm if bias is None else bias
    if own_bias or batch_norm:
        shift = _centring_bias(net, x, weight.reshape(channels, -1).sum(axis=1), std)
        count = channels * (2 * batch_norm + own_bias)
        inputs.append(net.parameter(f"{name}.bias", shift, count=count))
    out = [(side + 2 * pad - width) // stride + 1 for side, pad, width in zip(sides, pads, kernels, strict=True)]
    output = net.node(
        "Conv",
        inputs,
        (x.shape[0], channels, *out),
        name=name,
        dilations=[1] * len(sides),
        group=groups,
        kernel_shape=kernels,
        pads=[*pads, *pads],
        strides=[stride] * len(sides),
    )
    output = scaled(output, mean=0.0, power=std**2)
    return activation(net, output, act) if act else output


def gemm(net: Net, x: Value, features: int, *, name: str, std: float = 1.0) -> Value:
    """Add a fully connected layer on (batch, features), as PyTorch exports `Linear` there."""
    weight = net.normal((features, x.shape[1]), std / math.sqrt(x.shape[1] * x.variance))
    bias = _centring_bias(net, x, weight.sum(axis=1), std)
    parameters = [net.parameter(f"{name}.weight", weight), net.parameter(f"{name}.bias", bias)]
    output = net.node("Gemm", [x, *parameters], (x.shape[0], features), name=name, transB=1)
    return scaled(output, mean=0.0, power=std**2)


def batch_norm(net: Net, x: Value, *, name: str, act: str = "") -> Value:
    """Add a batch norm that cannot be folded, then an activation."""
    channels = x.shape[1:2]
    inputs: list[Value | str] = [
        x,
        net.parameter(f"{name}.weight", net.normal(channels, BIAS_STD, 1.0)),
        net.parameter(f"{name}.bias", net.normal(channels, BIAS_STD)),
        net.buffer(f"{name}.running_mean", net.normal(channels, BIAS_STD * x.rms, x.mean)),
        net.buffer(f"{name}.running_var", np.full(channels, x.variance, np.float32)),
    ]
    output = net.node("BatchNormalization", inputs, x.shape, name=name, epsilon=1e-5)
    return activation(net, output, act) if act else output


def _centring_bias(net: Net, x: Value, weight_sums: npt.NDArray[np.float32], std: float) -> npt.NDArray[np.float32]:
    """Return a small random bias that also removes what the input's mean adds to the output."""
    noise = net.normal(weight_sums.shape, BIAS_STD * std)
    return noise - np.float32(x.mean) * weight_sums


# --- elementwise -------------------------------------------------------------------------------------------


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)))


def _hard_sigmoid(x: Floats) -> Floats:
    return np.clip(x / 6 + 0.5, 0, 1)


def _gelu(x: Floats) -> Floats:
    share = np.array([0.5 * (1 + math.erf(item / math.sqrt(2))) for item in x])
    return np.asarray(x * share)


_FUNCTIONS: dict[str, Callable[[Floats], Floats]] = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "hardswish": lambda x: x * _hard_sigmoid(x),
    "hardsigmoid": _hard_sigmoid,
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "gelu": _gelu,
}
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(41)


def activation(net: Net, x: Value, kind: str) -> Value:
    """Add the activation `kind` in the operators that PyTorch's exporter writes at this opset."""
    values = _FUNCTIONS[kind](x.mean + math.sqrt(x.variance) * _NODES)
    weights = _WEIGHTS / _WEIGHTS.sum()
    output = _EMITTERS[kind](net, x)
    return scaled(output, mean=float(weights @ values), power=float(weights @ values**2))


def _emit_relu6(net: Net, x: Value) -> Value:
    return net.node("Clip", [x, net.scalar(0.0), net.scalar(6.0)], x.shape)


def _emit_hard_sigmoid(net: Net, x: Value) -> Value:
    return net.node("HardSigmoid", [x], x.shape, alpha=1 / 6, beta=0.5)


def _emit_hard_swish(net: Net, x: Value) -> Value:
    if net.opset >= 14:
        return net.node("HardSwish", [x], x.shape)
    return net.node("Mul", [x, _emit_hard_sigmoid(net, x)], x.shape)


def _emit_silu(net: Net, x: Value) -> Value:
    return net.node("Mul", [x, net.node("Sigmoid", [x], x.shape)], x.shape)


def _emit_gelu(net: Net, x: Value) -> Value:
    if net.opset >= 20:
        return net.node("Gelu", [x], x.shape)
    ratio = net.node("Div", [x, net.scalar(math.sqrt(2))], x.shape)
    shifted = net.node("Add", [net.node("Erf", [ratio], x.shape), net.scalar(1.0)], x.shape)
    return net.node("Mul", [net.node("Mul", [x, shifted], x.shape), net.scalar(0.5)], x.shape)


_EMITTERS: dict[str, Callable[[Net, Value], Value]] = {
    "relu": lambda net, x: net.node("Relu", [x], x.shape),
    "relu6": _emit_relu6,
    "hardswish": _emit_hard_swish,
    "hardsigmoid": _emit_hard_sigmoid,
    "sigmoid": lambda net, x: net.node("Sigmoid", [x], x.shape),
    "silu": _emit_silu,
    "gelu": _emit_gelu,
}


def add(net: Net, x: Value, y: Value, *, name: str = "") -> Value:
    """Add two tensors of one shape, taken as uncorrelated."""
    power = x.variance + y.variance + (x.mean + y.mean) ** 2
    return scaled(net.node("Add", [x, y], x.shape, name=name), mean=x.mean + y.mean, power=power)


def mul(net: Net, x: Value, y: Value, *, name: str = "") -> Value:
    """Multiply `x` by `y` (broadcast to x's shape), taken as independent."""
    output = net.node("Mul", [x, y], x.shape, name=name)
    return scaled(output, mean=x.mean * y.mean, power=x.power * y.power)


_EXPECTED_MAXIMUM = {2: 1.03, 3: 1.49, 5: 1.97}
"""Kernel -> mean of the largest of kernel**2 standard normal values."""

# --- pooling and heads -------------------------------------------------------------------------------------


def pool(
    net: Net,
    x: Value,
    kind: str,
    kernel: int,
    *,
    stride: int,
    padding: int = 0,
    ceil: bool = False,
    count_padding: bool = True,
) -> Value:
    """Add "max" or "average" pooling; the average counts padded zeros unless told otherwise, as PyTorch does."""
    extra: dict[str, Any] = {"count_include_pad": int(count_padding)} if kind == "average" else {}
    output = net.node(
        "MaxPool" if kind == "max" else "AveragePool",
        [x],
        (*x.shape[:2], *(_pooled(side, kernel, stride, padding, ceil=ceil) for side in x.shape[2:])),
        like=x,
        ceil_mode=int(ceil),
        kernel_shape=[kernel] * 2,
        pads=[padding] * 4,
        strides=[stride] * 2,
        **extra,
    )
    return _maximum_of(output, kernel) if kind == "max" else output


def _pooled(side: int, kernel: int, stride: int, padding: int, *, ceil: bool) -> int:
    steps = side + 2 * padding - kernel
    if not ceil:
        return steps // stride + 1
    count = -(-steps // stride) + 1
    # A window that would start in the right padding is dropped.
    return count - 1 if (count - 1) * stride >= side + padding else count


def _maximum_of(x: Value, kernel: int) -> Value:
    """Return the statistics of the maximum over a window of values that a rectifier left (half of them 0)."""
    sigma = math.sqrt(2 * x.power)
    mean = _EXPECTED_MAXIMUM[kernel] * sigma
    return scaled(x, mean=mean, power=mean**2 + 0.36 * sigma**2)


def global_average(net: Net, x: Value) -> Value:
    """Average over height and width, keeping both as 1."""
    output = net.node("GlobalAveragePool", [x], (*x.shape[:2], 1, 1))
    # Neighbouring positions are correlated: the spread shrinks, far less than by the number of positions.
    return scaled(output, mean=x.mean, power=x.mean**2 + 0.25 * x.variance)


def flatten(net: Net, x: Value) -> Value:
    """Flatten all axes but the first."""
    return net.node("Flatten", [x], (x.shape[0], math.prod(x.shape[1:])), like=x, axis=1)


def reduce(net: Net, x: Value, kind: str, axes: Sequence[int], *, keep: bool) -> Value:
    """Add `ReduceMean` or `ReduceSum` over non-negative axes."""
    shape = [1 if axis in axes else side for axis, side in enumerate(x.shape) if keep or axis not in axes]
    if kind == "ReduceSum" or net.opset >= 18:
        return net.node(kind, [x, net.integers(*axes)], shape, like=x, keepdims=int(keep))
    return net.node(kind, [x], shape, like=x, axes=list(axes), keepdims=int(keep))


def reshape(net: Net, x: Value, shape: Sequence[int]) -> Value:
    """Reshape to a static shape."""
    return net.node("Reshape", [x, net.integers(*shape)], shape, like=x)


def transpose(net: Net, x: Value, order: Sequence[int]) -> Value:
    """Permute the axes."""
    return net.node("Transpose", [x], [x.shape[axis] for axis in order], like=x, perm=list(order))


def split(net: Net, x: Value, sizes: Sequence[int], *, axis: int) -> tuple[Value, ...]:
    """Split an axis into parts of the given sizes."""
    shapes = [[size if place == axis else side for place, side in enumerate(x.shape)] for size in sizes]
    return net.nodes("Split", [x, net.integers(*sizes)], shapes, like=x, axis=axis)


def take(net: Net, x: Value, index: int, *, axis: int) -> Value:
    """Select one index of an axis, which disappears."""
    shape = [side for place, side in enumerate(x.shape) if place != axis]
    return net.node("Gather", [x, net.constant(np.array(index, np.int64))], shape, like=x, axis=axis)


def cut(net: Net, x: Value, start: int, end: int, *, axis: int, step: int = 1) -> Value:
    """Take the slice start:end:step of one axis."""
    size = len(range(start, end, step))
    shape = [size if place == axis else side for place, side in enumerate(x.shape)]
    bounds = [net.integers(value) for value in (start, end, axis, step)]
    return net.node("Slice", [x, *bounds], shape, like=x)


def concat(net: Net, values: Sequence[Value], *, axis: int = 1) -> Value:
    """Concatenate; the statistics are the average, weighted by size."""
    sizes = [value.shape[axis] for value in values]
    shape = list(values[0].shape)
    shape[axis] = sum(sizes)
    output = net.node("Concat", values, shape, axis=axis)
    return scaled(
        output,
        mean=float(np.average([value.mean for value in values], weights=sizes)),
        power=float(np.average([value.power for value in values], weights=sizes)),
    )


def squeeze_excite(net: Net, x: Value, squeezed: int, *, names: tuple[str, str], act: str, gate: str) -> Value:
    """Scale the channels of `x` by a gate that two 1x1 convolutions compute from their global average."""
    pooled = global_average(net, x)
    hidden = conv(net, pooled, squeezed, name=names[0], batch_norm=False, act=act)
    gates = conv(net, hidden, x.shape[1], name=names[1], batch_norm=False, act=gate)
    return mul(net, x, gates)
