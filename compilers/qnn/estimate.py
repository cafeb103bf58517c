"""From the simulator's figures to an Estimate, behind the checks that make them worth believing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from compilers.adapter import CompilerError
from compilers.artefact import Artefact, Estimate, Latency, Source
from compilers.qnn.placement import Partitioning, read_partitioning
from compilers.qnn.profile import HtpEstimate, read_estimates

if TYPE_CHECKING:
    from graphs import Graph

PROFILE_FILE: Final = "profile.csv"
PLACEMENT_FILE: Final = "placement.json"

# Beyond this ratio of upper to lower bound some operator has only a wild cost (seen: 47 to 499 ms).
_WIDEST_RATIO: Final = 2.0


def estimate(artefact: Artefact) -> Estimate:
    """Return the simulated time on the accelerator, from graph input to graph output, and its DRAM traffic.

    What the runtime adds for each invocation (0.1 to 0.25 ms) is not in it; a device's `dispatch_s` is.

    Raises:
        CompilerError: the chip has no simulator, or a check failed: not all of the graph is on the NPU in one
            partition, the bounds are a factor of 2 or more apart, or the profile has an unknown layout.
    """
    found = read_partitioning(artefact.directory / PLACEMENT_FILE)
    _check_whole(found)
    profile = _one_estimate(artefact, found.partitions)
    _check_bounds(profile)
    return Estimate(
        latency=Latency(
            typical_s=profile.time_us * 1e-6,
            low_s=profile.time_low_us * 1e-6,
            high_s=profile.time_high_us * 1e-6,
            source=Source.SIMULATED,
        ),
        dram_bytes=profile.dram_bytes,
        spill_bytes=profile.spill_bytes,
        uncosted_nodes=_uncosted(profile),
    )


def facts(text: str, found: Partitioning, graph: Graph, precision: str) -> tuple[tuple[str, str], ...]:
    """Return what the profile says about the two checks that do not refuse, for the artefact's facts.

    `input_fill_over_weights` is near 1 for a convolutional model; far above it, weights are dynamic.
    """
    profiles = read_estimates(text, partitions=found.partitions)
    if not profiles:
        return (("simulated", "false"),)
    fill = sum(p.input_fill_bytes for p in profiles)
    weights = graph.weight_bytes // 2 if precision == "fp16" else graph.weight_bytes
    return (
        ("simulated", "true"),
        ("operations_without_cost", str(sum(p.operations_without_cost for p in profiles))),
        ("input_fill_bytes", str(fill)),
        ("input_fill_over_weights", f"{fill / weights:.3f}" if weights else ""),
    )


def _uncosted(profile: HtpEstimate) -> tuple[str, ...]:
    """Name the nodes without a cost, and count those that the profile leaves unnamed."""
    names = profile.names_without_cost
    unnamed = profile.operations_without_cost - len(names)
    return (*names, *([f"{unnamed} HTP operations, which the profile does not name"] if unnamed else []))


def _check_whole(found: Partitioning) -> None:
    left = found.left_out()
    if left:
        why = found.placement.reasons[left[0]]
        raise CompilerError(
            f"no estimate: {len(left)} nodes run on the CPU, whose time the simulator does not know; "
            f"the first is {left[0]}: {why}"
        )
    if found.partitions != 1:
        raise CompilerError(f"no estimate: the graph fell into {found.partitions} NPU partitions instead of one")


def _one_estimate(artefact: Artefact, partitions: int) -> HtpEstimate:
    text = (artefact.directory / PROFILE_FILE).read_text(encoding="utf-8")
    profiles = read_estimates(text, partitions=partitions)
    if not profiles:
        raise CompilerError(
            f"Qualcomm's compiler holds no simulator of {artefact.device} "
            f"(soc_model {artefact.fact('soc_model')}); its artefact can be run, not estimated"
        )
    return profiles[0]


def _check_bounds(profile: HtpEstimate) -> None:
    low, typical, high = profile.time_low_us, profile.time_us, profile.time_high_us
    if low < 1:
        raise CompilerError("no estimate: the simulated time is below the profile's resolution of 1 us")
    if not low <= typical <= high or high >= _WIDEST_RATIO * low:
        raise CompilerError(
            f"no estimate: the simulator's bounds are {low} to {high} us around {typical}, so some operator "
            "has only a wild cost; another htp_graph_finalization_optimization_mode may do better"
        )
