"""The ONNX operator suite through lowering, package, reader and executor: ok, refused or wrong.

What a case is, and when it is wrong, `compilers.suite` says; the named disagreements of ONNX Runtime with ONNX are.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from compilers import suite
from compilers.coreml.lower import has_lowering, lower
from compilers.coreml.session import EmulatedSession
from compilers.coreml.write import write_package

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import onnx

    Array = np.ndarray[Any, Any]

DISAGREEMENTS: Final = suite.DISAGREEMENTS


def claimed_cases() -> Iterator[suite.Case]:
    """Yield the tensor cases all of whose operators have a lowering, in order of their names."""
    return (case for case in suite.tensor_cases() if _is_claimed(case.model))


def _is_claimed(model: onnx.ModelProto) -> bool:
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)
    return not model.functions and all(has_lowering(node, opset) for node in model.graph.node)


def judge(case: suite.Case, folder: Path | None = None) -> suite.Outcome:
    """Convert and run one case and compare."""
    if folder is None:
        with tempfile.TemporaryDirectory() as scratch:
            return judge(case, Path(scratch))
    return suite.judge(case, lambda model, inputs: convert_and_run(model, inputs, folder))


def convert_and_run(
    model: onnx.ModelProto, inputs: Sequence[Array], folder: Path, *, target: str = "iOS17", compute: str = "fp32"
) -> list[Array]:
    """Lower, write, read back and run a model on these inputs; return the outputs in the graph's order.

    Raises:
        CompilerError: the model is refused.
    """
    import onnx

    shaped = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for index, node in enumerate(shaped.graph.node):
        node.name = node.name or f"{node.op_type}_{index}"
    package = folder / "model.mlpackage"
    write_package(lower(shaped, target), package, target=target, compute=compute)
    names = [info.name for info in shaped.graph.input]
    results = EmulatedSession(package).run(dict(zip(names, inputs, strict=True)))
    return [results[info.name] for info in shaped.graph.output]
