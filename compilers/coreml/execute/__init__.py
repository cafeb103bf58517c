"""Run a saved `.mlpackage` without a Mac: MIL semantics, not Apple kernels. Times mean nothing."""

from compilers.coreml.execute import algebra, elementwise, layout, quantised, recurrent, windows
from compilers.coreml.execute.executor import Executor
from compilers.coreml.execute.table import KERNELS

# Imported for their rows in the table.
_FAMILIES = (algebra, elementwise, layout, quantised, recurrent, windows)

__all__ = ["KERNELS", "Executor"]
