"""The chip a segment is compiled for, in the QNN provider's terms."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from compilers.adapter import CompilerError
from compilers.ort_session import positive_int, read_options, require_precision

if TYPE_CHECKING:
    from partition import Segment

OPTIMISATION_MODE: Final = "htp_graph_finalization_optimization_mode"
OFFLOAD_IO: Final = "offload_graph_io_quantization"
PROFILING: Final = "profiling_level"
PERFORMANCE_MODE: Final = "htp_performance_mode"

_REFUSED: Final = {"fp32": "the HTP computes in float16 or in integers; ask for fp16 or int8"}
_MODES: Final = ("0", "1", "2", "3")
DEFAULT_MODE: Final = "3"
"""As the runtimes do it whose times calibrations are fitted to, so that what is deployed is what was predicted."""
# What the runtime votes for when it opens the artefact on a device; the simulator knows one clock.
_PERFORMANCE_MODES: Final = (
    "burst", "balanced", "default", "high_performance", "high_power_saver", "low_balanced", "low_power_saver",
    "power_saver", "sustained_high_performance",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One setting of the HTP compiler; `soc_model` alone selects the architecture."""

    soc_model: str
    vtcm_mb: str
    optimisation_mode: str
    offload_io: str
    profiling: str = "detailed"
    performance_mode: str = "burst"

    def provider_options(self) -> dict[str, str]:
        """Return the QNN provider's options."""
        return {
            "soc_model": self.soc_model,
            "vtcm_mb": self.vtcm_mb,
            OPTIMISATION_MODE: self.optimisation_mode,
            OFFLOAD_IO: self.offload_io,
            PERFORMANCE_MODE: self.performance_mode,
            # With int8 this is for what the quantiser left in float, and without effect on the rest.
            "enable_htp_fp16_precision": "1",
        }

    def facts(self) -> tuple[tuple[str, str], ...]:
        """Return the setting for an artefact's facts."""
        return (
            ("soc_model", self.soc_model),
            ("vtcm_mb", self.vtcm_mb),
            ("optimisation_mode", self.optimisation_mode),
            (OFFLOAD_IO, self.offload_io),
            (PERFORMANCE_MODE, self.performance_mode),
        )


def default_options(segment: Segment, *, fixed_io: bool = False) -> dict[str, str]:
    """Map each option of a segment for its chip to its default."""
    vtcm_mb = segment.device.processor(segment.processor).ids.get("qnn", {}).get("vtcm_mb", "")
    shared = {"vtcm_mb": vtcm_mb, OPTIMISATION_MODE: DEFAULT_MODE, PERFORMANCE_MODE: "burst"}
    return shared if fixed_io else {**shared, OFFLOAD_IO: "0", PROFILING: "detailed"}


def target(segment: Segment, *, backend: str, fixed_io: bool = False) -> Target:
    """Read the chip and the options of a segment.

    Options: `vtcm_mb` (1 up to what the chip has), `htp_graph_finalization_optimization_mode` (0 to 3),
    `htp_performance_mode` (for the device: the simulation does not depend on it) and, unless `fixed_io`,
    `offload_graph_io_quantization`: "0" (default here) quantises graph inputs on the HTP, so that placement and
    simulated time cover the whole graph; "1" leaves that to the CPU; and `profiling_level`: "optrace" keeps the
    simulator's trace of every tile (`compilers.qnn.optrace`).

    Raises:
        CompilerError: an option or the precision is not possible on the chip.
    """
    require_precision(segment, backend=backend, refused=_REFUSED)
    ids = segment.device.processor(segment.processor).ids.get("qnn", {})
    if "soc_model" not in ids:
        raise CompilerError(f"{segment.device.name} has no soc_model for {segment.processor} in its device file")
    if segment.precision == "fp16" and ids.get("fp16") == "false":
        name = segment.device.name
        raise CompilerError(f"{backend} has no fp16 for {name}: its HTP computes in integers; ask for int8")
    options = read_options(segment, backend=backend, defaults=default_options(segment, fixed_io=fixed_io))
    _choose(OPTIMISATION_MODE, options[OPTIMISATION_MODE], _MODES)
    _choose(PERFORMANCE_MODE, options[PERFORMANCE_MODE], _PERFORMANCE_MODES)
    offload = options.get(OFFLOAD_IO, "0")
    _choose(OFFLOAD_IO, offload, ("0", "1"))
    profiling = options.get(PROFILING, "detailed")
    _choose(PROFILING, profiling, ("detailed", "optrace"))
    return Target(
        soc_model=ids["soc_model"],
        vtcm_mb=_vtcm(options["vtcm_mb"], ids.get("vtcm_mb"), segment.device.name),
        optimisation_mode=options[OPTIMISATION_MODE],
        offload_io=offload,
        profiling=profiling,
        performance_mode=options[PERFORMANCE_MODE],
    )


def _vtcm(asked: str, chip_has: str | None, device: str) -> str:
    """Check the VTCM size: the compiler accepts 16 MB for a chip that has 8."""
    if chip_has is None:
        raise CompilerError(f"the device file of {device} gives no vtcm_mb under ids.qnn")
    size = positive_int(asked, "option vtcm_mb")
    if size > positive_int(chip_has, f"vtcm_mb of {device}"):
        raise CompilerError(f"{device} has {chip_has} MB of VTCM, and {asked} MB were asked for")
    return str(size)


def _choose(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise CompilerError(f"option {option} must be one of {', '.join(choices)}, not {value!r}")
