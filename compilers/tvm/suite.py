"""The ONNX operator suite through import, fusion, schedules, code and check, without linking a library for each case.

Imports TVM; call it through `compilers.in_child`, because a case may crash.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compilers import suite
from compilers.adapter import CompilerError
from compilers.ort_session import QUANTISERS
from compilers.tvm import TvmCompiler, pipeline, runtime
from compilers.tvm.cache import ENVIRONMENT
from compilers.tvm.check import check_model
from graphs import GraphError, from_proto, save
from partition import Segment, load_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    Array = np.ndarray[Any, Any]


def judge_cases(names: Sequence[str], journal: Path) -> list[suite.Outcome]:
    """Judge the cases of these names in this process, with one tile for each function and a cache of their own.

    Each outcome is also a line of `journal` at once, so that a case that ends the process takes no other with it.
    """
    runtime.use_threads(1)
    outcomes = []
    with tempfile.TemporaryDirectory() as folder, journal.open("a", encoding="utf-8") as lines:
        os.environ[ENVIRONMENT] = folder
        model = Path(folder) / "segment.onnx"
        for case in suite.tensor_cases():
            if case.name in set(names):
                outcomes.append(suite.judge(case, lambda proto, inputs: _run(proto, inputs, model)))
                lines.write(json.dumps(dataclasses.asdict(outcomes[-1])) + "\n")
                lines.flush()
    return outcomes


def _run(proto: onnx.ModelProto, inputs: Sequence[Array], model: Path) -> list[Array]:
    compiler = TvmCompiler()
    try:
        graph = from_proto(proto)
    except GraphError as error:
        raise CompilerError(str(error)) from error
    try:
        quantised = any(node.op_type in QUANTISERS for node in graph.nodes())
        segment = Segment(
            graph=graph,
            device=load_device("host"),
            processor="cpu",
            compiler=compiler.name,
            precision="int8" if quantised else "fp32",
        )
        built = pipeline.build(segment, compiler.version(), threads=1, candidates=1)
        specs = [(spec.name, list(spec.shape or ()), spec.dtype) for spec in graph.inputs()]
        outputs = [spec.name for spec in graph.outputs()]
        with runtime.TvmSession(built.executable, specs, outputs) as session:
            save(graph, model)
            check_model(graph, model, session)
            found = session.run(dict(zip([name for name, _, _ in specs], inputs, strict=True)))
    except CompilerError:
        raise
    except Exception as error:  # what `compilers.child` makes of any other error of a vendor
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise CompilerError(f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]) from error
    return [np.asarray(found[name]) for name in outputs]
