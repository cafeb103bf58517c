"""Tiles of a layer for an NPU-like or a GPU-like memory hierarchy: spaces, legality, cost models and exact search."""

from partition.tile.bands import band_latency_s
from partition.tile.cost import BandwidthBound, Cost, Machine, Point, operand_conflicts
from partition.tile.gpu import GpuMachine, GpuSpace, GpuTile, gpu_machine, power_space
from partition.tile.gpu import evaluate as evaluate_gpu
from partition.tile.gpu import refusal as gpu_refusal
from partition.tile.gpu_build import build_refusal, buildable_space
from partition.tile.gpu_kernel import Access, GpuKernel, kernel_cost
from partition.tile.gpu_search import GpuResult, frontier_gpu, search_gpu
from partition.tile.npu import NpuMachine, NpuSpace, NpuTile, balanced_space, every_space, npu_machine, row_space
from partition.tile.npu_cost import evaluate as evaluate_npu
from partition.tile.npu_cost import largest_tile, rows_fetched
from partition.tile.npu_cost import refusal as npu_refusal
from partition.tile.operators import (
    CONV,
    DEPTHWISE,
    ELEMENT_BYTES,
    MATMUL,
    NORM,
    POOL,
    Layer,
    TileError,
    convolution,
    layers_of,
    matmul,
    normalisation,
    pool,
)
from partition.tile.parse import parse_operator
from partition.tile.search import NpuResult, frontier_npu, search_npu
from partition.tile.validation import MODELS, OPERATORS, Validation, validations
from partition.tile.whole import WholeCost, whole_cost

__all__ = [
    "CONV",
    "DEPTHWISE",
    "ELEMENT_BYTES",
    "MATMUL",
    "MODELS",
    "NORM",
    "OPERATORS",
    "POOL",
    "Access",
    "BandwidthBound",
    "Cost",
    "GpuKernel",
    "GpuMachine",
    "GpuResult",
    "GpuSpace",
    "GpuTile",
    "Layer",
    "Machine",
    "NpuMachine",
    "NpuResult",
    "NpuSpace",
    "NpuTile",
    "Point",
    "TileError",
    "Validation",
    "WholeCost",
    "balanced_space",
    "band_latency_s",
    "build_refusal",
    "buildable_space",
    "convolution",
    "evaluate_gpu",
    "evaluate_npu",
    "every_space",
    "frontier_gpu",
    "frontier_npu",
    "gpu_machine",
    "gpu_refusal",
    "kernel_cost",
    "largest_tile",
    "layers_of",
    "matmul",
    "normalisation",
    "npu_machine",
    "npu_refusal",
    "operand_conflicts",
    "parse_operator",
    "pool",
    "power_space",
    "row_space",
    "rows_fetched",
    "search_gpu",
    "search_npu",
    "validations",
    "whole_cost",
]
