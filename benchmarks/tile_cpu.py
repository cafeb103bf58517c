"""Does the static order of CPU tiles (`compilers/tvm/tiles.py`) agree with measured times? `benchmarks.tiles cpu`."""

from __future__ import annotations

import functools
import os
import random
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx

# (input channels, output channels, kernel, stride, rows and columns, groups), and two matrix products (m, c, k).
OPERATORS: Final = (
    (64, 64, 3, 1, 56, 1), (128, 128, 3, 1, 28, 1), (256, 256, 3, 1, 14, 1), (64, 256, 1, 1, 56, 1),
    (512, 128, 1, 1, 28, 1), (1024, 256, 1, 1, 14, 1), (96, 96, 3, 2, 56, 96), (32, 64, 3, 2, 112, 1),
)  # fmt: skip
PRODUCTS: Final = ((196, 768, 768), (128, 512, 512))
RANDOM_TILES: Final = 24
TOP_SHARE: Final = 0.1
ROUNDS: Final = 3


def agreement() -> None:
    """Measure the model's first tenth and a random sample of the rest of all legal tiles of each operator."""
    from compilers.tvm.targets import host_target

    print(f"one thread, least of {ROUNDS} rounds over all tiles; load average {os.getloadavg()[0]:.1f}")
    target, within = host_target(), 0
    models = operators()
    for title, model in models:
        row = _operator(model, target)
        near = row["top_s"] <= 1.1 * row["best_s"]
        within += near
        print(
            f"{title:38s} {row['all']:4d} tiles, {row['top']:3d} in the first tenth, {row['measured']:3d} measured: "
            "best "
            f"{row['best_s'] * 1e6:7.1f} us, best of the first tenth {row['top_s'] * 1e6:7.1f} us"
            f" ({'within' if near else 'not within'} 10 %), rank correlation {row['rank']:.2f}",
            flush=True,
        )
    print(f"within 10 % for {within} of {len(models)}")


def operators() -> list[tuple[str, onnx.ModelProto]]:
    """List the operators that are measured, with their names."""
    return [(_title(op), _convolution(*op)) for op in OPERATORS] + [(f"matmul {p}", _product(*p)) for p in PRODUCTS]


def _operator(model: onnx.ModelProto, target: Any) -> dict[str, Any]:  # noqa: ANN401 - TVM has no types
    import tvm

    from compilers.tvm import frontend
    from compilers.tvm.schedule import analyse
    from compilers.tvm.targets import registers_of
    from compilers.tvm.tiles import candidates

    module = frontend.fuse(frontend.import_graph(model), target)
    functions = [f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    func, nest = max(((f, n) for f in functions if (n := analyse(f))), key=lambda item: item[1].macs)
    ordered = candidates(nest, registers_of(target), 100_000)
    top = max(1, round(TOP_SHARE * len(ordered)))
    rest = random.Random(0).sample(ordered[top:], min(RANDOM_TILES, len(ordered) - top))  # noqa: S311 - a sample, no secret
    chosen = [*ordered[:top], *rest]
    times = _measure(func, chosen, target)
    known = [(place, times[config]) for place, config in enumerate(ordered) if config in times]
    ranks = [np.argsort(np.argsort(np.array(values))) for values in zip(*known, strict=True)]
    return {
        "all": len(ordered), "top": top, "measured": len(known),
        "best_s": min(times.values()), "top_s": min(s for config, s in times.items() if config in ordered[:top]),
        "rank": float(np.corrcoef(*ranks)[0, 1]),
    }  # fmt: skip


def _measure(func: Any, configs: list[Any], target: Any) -> dict[Any, float]:  # noqa: ANN401 - as above
    """Build all tiles, then time them in turn, several rounds, so that a busy moment hits no tile alone."""
    from compilers.tvm.schedule import UnscheduledError, schedule
    from compilers.tvm.sweep import arguments_of, build_each

    scheduled = {}
    for number, config in enumerate(configs):
        try:
            scheduled[f"t{number}"] = schedule(func, config, threads=1)
        except UnscheduledError:
            continue
    kernels = build_each(scheduled, target)
    calls = {name: functools.partial(kernel, *arguments_of(func, scheduled[name])) for name, kernel in kernels}
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            least[name] = min(least[name], least_s(call))
    return {configs[int(name[1:])]: seconds for name, seconds in least.items()}


def least_s(call: Callable[[], object]) -> float:
    call()
    least, spent = float("inf"), 0.0
    while spent < 0.006:
        start = time.perf_counter()
        call()
        took = time.perf_counter() - start
        least, spent = min(least, took), spent + took
    return least


def _title(op: tuple[int, ...]) -> str:
    c, k, f, s, size, groups = op
    return f"conv {c}>{k} {f}x{f}/{s} {size}x{size}" + (f" groups {groups}" if groups > 1 else "")


def _convolution(c: int, k: int, f: int, s: int, size: int, groups: int) -> onnx.ModelProto:
    weight = np.random.default_rng(0).standard_normal((k, c // groups, f, f)).astype(np.float32)
    out = (size + 2 * (f // 2) - f) // s + 1
    window = {"kernel_shape": [f, f], "pads": [f // 2] * 4, "strides": [s, s], "group": groups}
    node = helper.make_node("Conv", ["x", "w"], ["c"], name="conv", **window)
    return _model(
        [node, helper.make_node("Relu", ["c"], ["y"], name="relu")], weight, (1, c, size, size), (1, k, out, out)
    )


def _product(m: int, c: int, k: int) -> onnx.ModelProto:
    weight = np.random.default_rng(0).standard_normal((c, k)).astype(np.float32)
    return _model([helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")], weight, (m, c), (m, k))


def _model(nodes: list[Any], weight: Any, shape: tuple[int, ...], out: tuple[int, ...]) -> onnx.ModelProto:  # noqa: ANN401
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in (("x", shape), ("y", out))]
    graph = helper.make_graph(nodes, "op", info[:1], info[1:], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
