"""Time and memory of the graph core against its bars; the figures are in benchmarks/README.md.

Usage: python -m benchmarks.graphs [NAME ...]

Each bar runs in a process of its own, so that its peak memory is its own. A wall time says little on a busy machine:
the CPU time and the load average stand beside it. Needs 5 GB of disk for `external`.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from graphs import Calibration, Graph, extract, load, quantise, save, zoo
from partition import to_dag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

REPEATS = 5


def main(names: list[str]) -> int:
    """Run the named bars, or all."""
    unknown = [name for name in names if name not in BARS]
    if unknown:
        print(f"error: no bar {unknown[0]!r} (known: {', '.join(BARS)})", file=sys.stderr)
        return 2
    for name in names or BARS:
        subprocess.run([sys.executable, "-m", "benchmarks.graphs", "--here", name], check=True)
    return 0


def timed(work: Callable[[], object], repeats: int = REPEATS) -> str:
    """Time `work`, and give the median and the least of wall and CPU seconds."""
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return (
        f"{statistics.median(walls):.2f} s wall (least {min(walls):.2f}), {statistics.median(cpus):.2f} s CPU "
        f"(least {min(cpus):.2f}), of {repeats}"
    )


def vit() -> str:
    """Load, infer, count and build the DAG of vit_b_16 (346 MB); bar: 1 s."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vit.onnx")
        save(zoo.build("vit_b_16"), path)
        return timed(lambda: to_dag(load(path)))


def synthetic() -> str:
    """Do the same with a chain of 10,000 nodes with residual additions; bar: 3 s."""
    nodes = []
    for index in range(5000):
        nodes.append(helper.make_node("Conv", [f"t{index}", f"w{index % 50}"], [f"c{index}"], name=f"conv{index}"))
        nodes.append(helper.make_node("Add", [f"c{index}", f"t{index}"], [f"t{index + 1}"], name=f"add{index}"))
    weights = [numpy_helper.from_array(np.ones((8, 8, 1, 1), np.float32), f"w{index}") for index in range(50)]
    image = helper.make_tensor_value_info("t0", TensorProto.FLOAT, [1, 8, 16, 16])
    result = helper.make_tensor_value_info("t5000", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph(nodes, "chain", [image], [result], weights))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "chain.onnx")
        onnx.save(model, path)
        return timed(lambda: to_dag(load(path)))


def external() -> str:
    """Load, digest and copy a model with 2.1 GB of external data; bar: a peak of 1.3 times the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "large.onnx")
        size = _write_large(path)
        steps = [f"{size / 1e9:.2f} GB; peak after imports {_peak() / 1e9:.2f} GB"]
        graph = load(path)
        steps.append(f"load {_peak() / 1e9:.2f}")
        assert graph.digest
        steps.append(f"digest {_peak() / 1e9:.2f}")
        save(graph, Path(folder, "copy.onnx"))
        return ", ".join([*steps, f"save {_peak() / 1e9:.2f} GB = {_peak() / size:.2f} of the file"])


def _write_large(path: Path) -> int:
    """Write 32 matrix products of 4096 x 4096 with the weights beside the model; return the size of both files."""
    side, layers = 4096, 32
    model = helper.make_model(helper.make_graph([], "large", [], []))
    block = np.random.default_rng(0).standard_normal((side, side), dtype=np.float32).tobytes()
    with Path(f"{path}.data").open("wb") as file:
        for index in range(layers):
            tensor = model.graph.initializer.add(name=f"w{index}", data_type=TensorProto.FLOAT, dims=[side, side])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", f"{path.name}.data"), ("offset", file.tell()), ("length", len(block))):
                tensor.external_data.add(key=key, value=str(value))
            file.write(block)
            model.graph.node.append(helper.make_node("MatMul", [f"t{index}", f"w{index}"], [f"t{index + 1}"]))
    model.graph.input.append(helper.make_tensor_value_info("t0", TensorProto.FLOAT, [1, side]))
    model.graph.output.append(helper.make_tensor_value_info(f"t{layers}", TensorProto.FLOAT, [1, side]))
    onnx.save(model, path)
    return path.stat().st_size + Path(f"{path}.data").stat().st_size


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cuts() -> str:
    """Extract both sides of all single cut points of every zoo model, and check each part; bar: 60 s."""
    models = [zoo.build(name) for name in zoo.names()]
    count = sum(2 * (len(model.nodes()) - 1) for model in models)
    return f"{len(models)} models, {count} parts, " + timed(lambda: _check_cuts(models), 1)


def _check_cuts(models: Iterable[Graph]) -> None:
    for graph, front, back in _cuts(models):
        assert front.macs is not None
        assert back.macs is not None
        assert front.macs + back.macs == graph.macs
        fed = {spec.name for spec in (*graph.inputs(), *front.outputs())}
        assert fed >= {spec.name for spec in back.inputs()}
        for part in (front, back):
            _check_valid(part)


def _cuts(models: Iterable[Graph]) -> Iterator[tuple[Graph, Graph, Graph]]:
    """Give each model with the two sides of each of its cuts."""
    for graph in models:
        names = [node.name for node in graph.nodes()]
        for cut in range(1, len(names)):
            yield graph, extract(graph, names[:cut]), extract(graph, names[cut:])


def _check_valid(graph: Graph) -> None:
    """Run onnx.checker without the large weights: copying those would be all that is timed."""
    from graphs.shapes import check, skeleton_of

    check(skeleton_of(graph._body, graph._weights))  # noqa: SLF001


def int8() -> str:
    """Quantise resnet50 with 32 random images; bars: 60 s and 2 GB."""
    graph = zoo.build("resnet50")
    took = timed(lambda: quantise(graph, "int8", Calibration.random(graph, 32)), 1)
    return f"{took}; peak {_peak() / 1e9:.2f} GB"


BARS: dict[str, Callable[[], str]] = {
    bar.__name__: bar for bar in (vit, synthetic, external, cuts, int8)
}  # fmt: skip

if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        print(f"{sys.argv[2]}: {BARS[sys.argv[2]]()}; load average {os.getloadavg()[0]:.1f}", flush=True)
    else:
        sys.exit(main(sys.argv[1:]))
