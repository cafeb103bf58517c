"""The two shell scripts of a deployment: `device.sh` runs on the device, `run.sh` here; both are plain POSIX sh."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from experiments.deployment.bundle import OUTPUT_TOOLS, TOOLS, folder_name
from experiments.deployment.outputs import DATA, INPUT_LIST, passed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiments.deployment.bundle import Bundled
    from partition import Plan

# Exit codes of run.sh, and what each step's failure means.
STEPS: Final = {10: "connect", 11: "push", 12: "run", 13: "pull"}

_ADB: Final = """\
tool="${ADB:-adb}"
work="${EDGE_WORK:-/data/local/tmp/edgefrontier}/@DIGEST@"
connect() {
    state="$("$tool" get-state 2>&1)" || { echo "$state"; return 1; }
    [ "$state" = device ] || { echo "$state"; return 1; }
    echo "device: $("$tool" shell getprop ro.product.model) $("$tool" get-serialno)"
}
on_device() { "$tool" shell "$1"; }
push() { "$tool" push "$1" "$2"; }
pull() { "$tool" pull "$1" "$2"; }
"""

_SSH: Final = """\
host="${EDGE_HOST:?set EDGE_HOST to user@board}"
work="${EDGE_WORK:-/tmp/edgefrontier}/@DIGEST@"
connect() { name="$(on_device "uname -n -m")" || return 1; echo "device: $name"; }
on_device() { ssh -o BatchMode=yes -o ConnectTimeout=10 "$host" "$1"; }
push() { scp -q -r -o BatchMode=yes "$1" "$host:$2"; }
pull() { scp -q -r -o BatchMode=yes "$host:$1" "$2"; }
"""

_RUN: Final = """\
#!/bin/sh
# Plan @DIGEST@: push the payload to the device, run it there, fetch what its tools printed.
# EDGE_TOOLS: a folder with @TOOLS@ and their libraries for the device; without it they must be in
# the device's work folder (EDGE_WORK) under tools/. Where @OUTPUT_TOOLS@ is there too, the outputs
# are compared. Exit code: 10 no device, 11 push, 12 run, 13 pull failed.
set -u
here="$(cd "$(dirname "$0")" && pwd)"
@TRANSPORT@
step() { echo "step: $1"; }
step connect; connect || exit 10
step push; on_device "rm -rf '$work/results'; mkdir -p '$work/tools'" || exit 11
for part in "$here"/payload/* "$here/device.sh"; do push "$part" "$work/" || exit 11; done
if [ -n "${EDGE_TOOLS:-}" ]; then
    for part in "$EDGE_TOOLS"/*; do push "$part" "$work/tools/" || exit 11; done
fi
step run; on_device "cd '$work' && sh device.sh" || exit 12
step pull; rm -rf "$here/results"; pull "$work/results" "$here/" || exit 13
[ -e "$here/results/complete" ] || { echo "the device did not finish all segments"; exit 12; }
step done
"""

_DEVICE: Final = """\
#!/bin/sh
# Run every segment with its tool on random inputs; one file of output per segment, and "complete" at the end.
set -u
cd "$(dirname "$0")"
mkdir -p results
export LD_LIBRARY_PATH="$PWD/tools:${LD_LIBRARY_PATH:-}"
# Where the DSP looks for its skeleton library; ";" separates its folders.
export ADSP_LIBRARY_PATH="$PWD/tools;${ADSP_LIBRARY_PATH:-}"
export PATH="$PWD/tools:$PATH"
chmod +x tools/* 2>/dev/null
segment() {
    number="$1"; shift
    "$@" >"results/$number.txt" 2>&1 || { echo "segment $number failed:"; tail -n 5 "results/$number.txt"; exit 1; }
}
# What the segments compute on the inputs that came along; a tool that is missing costs the comparison, not the times.
rm -rf check
outputs() {
    number="$1"; from="$2"; shift 2
    mkdir -p "check/$number" "results/$number"
    while [ "$1" != -- ]; do cp "$from/$1" "check/$number/"; shift; done
    shift
    cp -r "$from/@DATA@" "check/$number/"
    (cd "check/$number" && "$@") >"results/$number-outputs.txt" 2>&1
    for made in "check/$number/@DATA@"/actual_output_*.pb "check/$number"/outputs/Result_0/*.raw; do
        if [ -e "$made" ]; then cp "$made" "results/$number/"; fi
    done
}
hand_over() {
    made="results/$1/actual_output_$2.pb"
    if [ -e "$made" ]; then cp "$made" "$3/@DATA@/input_$4.pb"; else rm -f "$3/@DATA@/input_$4.pb"; fi
}
@SEGMENTS@
@OUTPUTS@
touch results/complete
"""


def run_script(plan: Plan, transport: str) -> str:
    """Write `run.sh` for "adb" or "ssh"."""
    timers, others = (
        " and ".join(dict.fromkeys(table[segment.compiler] for segment in plan.segments))
        for table in (TOOLS, OUTPUT_TOOLS)
    )
    text = _RUN.replace("@TRANSPORT@", _ADB if transport == "adb" else _SSH).replace("@OUTPUT_TOOLS@", others)
    return text.replace("@DIGEST@", plan.digest[:12]).replace("@TOOLS@", timers)


def device_script(bundled: tuple[Bundled, ...], *, runs: int, performance_mode: str) -> str:
    """Write `device.sh`: `runs` inferences of each segment in the given performance mode, then one for its outputs."""
    lines = (
        f"segment {index} {shlex.join(_command(index, entry, runs, performance_mode))}"
        for index, entry in enumerate(bundled)
    )
    text = _DEVICE.replace("@SEGMENTS@", "\n".join(lines)).replace("@OUTPUTS@", "\n".join(_outputs(bundled)))
    return text.replace("@DATA@", DATA)


def _outputs(bundled: tuple[Bundled, ...]) -> Iterator[str]:
    between = passed(bundled)
    for index, entry in enumerate(bundled):
        folder = folder_name(index, entry)
        yield from (f"hand_over {made} {out} {folder} {port}" for made, out, to, port in between if to == index)
        files = [path.name for path in entry.published()[0].files]
        yield f"outputs {index} {shlex.join([folder, *files, '--', *_output_command(entry, files[0])])}"


def _output_command(entry: Bundled, main: str) -> list[str]:
    tool = OUTPUT_TOOLS[entry.segment.compiler]
    if entry.segment.compiler == "snpe":
        out = ["--input_list", f"{DATA}/{INPUT_LIST}", "--output_dir", "outputs"]
        return [tool, "--container", main, *out, "--set_output_tensors", ",".join(entry.given_there), "--use_dsp"]
    # -I: save the outputs instead of comparing them.
    provider = ["qnn", "-i", "backend_path|libQnnHtp.so"] if entry.segment.compiler == "ort_qnn" else ["cpu"]
    return [tool, "-I", "-e", *provider, "."]


def _command(index: int, entry: Bundled, runs: int, performance_mode: str) -> list[str]:
    mode = entry.published()[0]
    performance_mode = entry.segment.option("htp_performance_mode", performance_mode)
    path = f"{folder_name(index, entry)}/{mode.files[0].name}"
    if entry.segment.compiler == "snpe":
        seconds = ["--duration", "10", "--perf_profile", performance_mode]
        return ["snpe-throughput-net-run", "--container", path, *seconds, "--use_dsp"]
    # -I: random inputs; -s: the percentiles of all runs.
    common = ["onnxruntime_perf_test", "-m", "times", "-r", str(runs), "-s", "-I"]
    if entry.segment.compiler == "ort_qnn":
        options = f"backend_path|libQnnHtp.so htp_performance_mode|{performance_mode}"
        return [*common, "-e", "qnn", "-i", options, path]
    return [*common, "-e", "cpu", "-x", entry.artefact.fact("threads", "1"), path]
