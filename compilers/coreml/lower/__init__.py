"""Strict lowering ONNX -> MIL: whatever is not read is refused.

`TABLE` maps an operator to the one function that lowers it; each family of operators has a module. To add an
operator, write one function with `@lowers("Name")`.
"""

from compilers.coreml.lower import (
    activation,
    arithmetic,
    convolution,
    indexing,
    layout,
    linear,
    normalisation,
    pooling,
    quantised,
    recurrent,
    reduction,
    resize,
)
from compilers.coreml.lower.program import Lowered, Port, has_lowering, lower, node_refusals
from compilers.coreml.lower.table import TABLE

# Imported for their rows in the table.
_FAMILIES = (
    activation,
    arithmetic,
    convolution,
    indexing,
    layout,
    linear,
    normalisation,
    pooling,
    quantised,
    recurrent,
    reduction,
    resize,
)

__all__ = ["TABLE", "Lowered", "Port", "has_lowering", "lower", "node_refusals"]
