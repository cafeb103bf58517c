"""Core ML: ONNX to `.mlpackage` by an own strict lowering, checked off the Mac by an own executor."""

from compilers.coreml.adapter import CoreMLCompiler

__all__ = ["CoreMLCompiler"]
