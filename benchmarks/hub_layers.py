"""Tell without a latency whether a graph is what Qualcomm's table measured: by the operators that the provider makes.

Usage: python benchmarks/hub_layers.py TABLE.csv FILE.onnx ...

FILE is <model of the table>.onnx or <model>__<component>.onnx, float. A right graph has as many operators, and two for
inputs and outputs, as the table has layers for the model's float rows of ONNX Runtime.
"""

from __future__ import annotations

import csv
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from compilers.qnn import wheel
from compilers.qnn.dlc import only_graph
from compilers.qnn.session import npu_session
from compilers.qnn.workarounds import readable_file
from graphs import load, save

INPUTS_AND_OUTPUTS = 2
# The operators do not depend on the chip or on the optimisation, of which this is the shortest.
OPTIONS = {
    "soc_model": "52",
    "vtcm_mb": "8",
    "htp_graph_finalization_optimization_mode": "1",
    "enable_htp_fp16_precision": "1",
    "dump_qnn_ir_dlc": "1",
}


def main(arguments: list[str]) -> int:
    """Print operators and layers of each file."""
    table = Path(arguments[0])
    for file in map(Path, arguments[1:]):
        kinds, measured = operators(file), layers(table, file.stem.replace("__", "/"))
        print(
            f"{file.stem}: {kinds.total() + INPUTS_AND_OUTPUTS} here, measured {measured}; {dict(kinds.most_common())}"
        )
    sys.stdout.flush()
    os._exit(0)  # the vendor's libraries may crash as they are unloaded


def operators(file: Path) -> Counter[str]:
    """Count the operators of QNN in the DLC that the provider writes of the graph as it is."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph = load(file)
        save(graph, folder / "segment.onnx")
        options = OPTIONS | {
            "dump_qnn_ir_dlc_dir": str(folder),
            "qnn_ir_backend_path": str(wheel.library(wheel.IR_LIBRARY)),
        }
        npu_session(readable_file(graph, folder), options, log=folder / "log")
        (dlc,) = folder.glob("*.dlc")
        return Counter(node.op_type for node in only_graph(dlc).nodes)


def layers(table: Path, model: str) -> list[int]:
    """Return the layer counts of the model's float rows of ONNX Runtime that ran on the NPU alone."""
    with table.open(encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if (r["precision"], r["runtime"]) == ("float", "onnx")]
    own = [r for r in rows if model in (r["model"], f"{r['model']}/{r['component']}") and r["cpu_layers"] == "0"]
    return sorted({int(r["npu_layers"]) for r in own})


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
