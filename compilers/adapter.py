"""The one interface every backend implements, and the probes they share."""

from __future__ import annotations

import abc
import dataclasses
import enum
import hashlib
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, final

from compilers.machine import cpu

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    import numpy as np

    from compilers.artefact import Artefact, Estimate, Placement
    from compilers.profile import KernelTime
    from compilers.trace import Trace
    from graphs import Graph
    from partition import Device, Segment


# What a compiler says about an artefact: of use here, not on a device.
_REPORTS = frozenset({".json", ".csv"})


class Action(enum.StrEnum):
    """What one may ask of a backend for a device."""

    COMPILE = "compile"
    RUN = "run"
    ESTIMATE = "estimate"


class Cause(enum.StrEnum):
    """Why a node is not on the processor asked for, as far as the backend tells."""

    OPERATOR = "operator unsupported"
    DTYPE = "dtype unsupported"
    SHAPE = "shape unsupported"
    ATTRIBUTE = "attribute unsupported"
    CHECK = "dtype, shape or attribute unsupported"
    DYNAMIC = "dynamic shape or parameter"
    OPTION = "left to the CPU by an option"
    CLAIMED = "claimed, then refused"
    LIBRARY = "library missing"
    PROFILE = "refused by the profile"
    UNTOLD = "the backend gives no reason"


class CompilerError(RuntimeError):
    """A backend refused or failed: `reason` is one sentence, `log` what the vendor printed.

    `nodes` maps each node that the backend named as refused to its reason; empty when it named none.
    """

    def __init__(self, reason: str, *, log: str = "", nodes: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.log = log
        self.nodes = dict(nodes or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_error, (type(self), self.reason, self.log, self.nodes)


class PassingError(CompilerError):
    """What failed is no matter of the graph (a limit, a crash, a full disk, no answer): a rerun may get past it."""


class DiedError(PassingError):
    """The compile crashed or ran into a limit: of the graph, if it does so again, else of what else was going on."""


class LimitError(DiedError):
    """The compile was stopped at its limit of time or memory."""


class StartError(PassingError):
    """The backend could not start at all, so it says nothing about the graph; a rerun may find it mended."""


def _rebuild_error(kind: type[CompilerError], reason: str, log: str, nodes: dict[str, str]) -> CompilerError:
    return kind(reason, log=log, nodes=nodes)


class Session(abc.ABC):
    """A loaded artefact. `run` is the timed call, so it does nothing but run.

    `on_device` says whether the processor that the segment asked for does the work: an emulator or an
    interpreter gives outputs that can be checked, and times that mean nothing. `here` says whether this process
    does the work, so that its clock and its memory tell; a device that does it elsewhere has `device_times_s`.
    """

    on_device: ClassVar[bool] = True
    here: ClassVar[bool] = True

    @abc.abstractmethod
    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Run once: arrays by input name in, arrays by output name out."""

    def device_times_s(
        self,
        inputs: Mapping[str, np.ndarray[Any, Any]],  # noqa: ARG002
        *,
        samples: int,  # noqa: ARG002
        calls: int = 1,  # noqa: ARG002
    ) -> tuple[float, ...]:
        """Return seconds by the clock of a device that is not `here`: each sample the mean of `calls` runs."""
        raise CompilerError(f"{type(self).__name__} runs here; take the time around `run`")

    def close(self) -> None:  # noqa: B027 - most sessions have nothing to release
        """Release the vendor's resources; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One way to compile a graph: options of a segment, and whether it reads feeds for ranges of activations."""

    options: tuple[tuple[str, str], ...] = ()
    reads_feeds: bool = False


class Compiler(abc.ABC):
    """A backend: it turns a Segment into an Artefact, and may load, estimate or explain it."""

    name: ClassVar[str]
    takes_tiles: ClassVar[bool] = False
    """Whether `compile` builds the tile sizes that a segment asks for; a segment with tiles is refused elsewhere."""

    @abc.abstractmethod
    def why_not(self, action: Action, device: Device, processor: str) -> str | None:
        """Return None when the action can be asked for, else what is missing and the way out.

        Cheap (no vendor import) and never raises.
        """

    @final
    def available(self, action: Action, device: Device, processor: str) -> bool:
        """Tell whether the action can be asked for."""
        return self.why_not(action, device, processor) is None

    def is_timed(self, device: Device, processor: str) -> bool:  # noqa: ARG002
        """Tell whether artefacts are timed, one after the other: on this machine, or on one that can be reached."""
        return device.os == "host" or device.address is not None

    @abc.abstractmethod
    def version(self) -> str:
        """Return package versions and a hash of the vendor's library; part of every cache key."""

    def machine(self, device: Device, processor: str) -> str:  # noqa: ARG002
        """Tell which processor of this machine stands for the device's, "" where none does; part of every cache key.

        Code is made for it, and it is timed: what another machine, or another GPU of this one, left is not its own.
        """
        return cpu() if device.os == "host" else ""

    def variants(self, precision: str, device: Device, processor: str) -> tuple[Variant, ...]:  # noqa: ARG002
        """List the ways to compile that a sweep should try; the first is the plain one, without options."""
        return (Variant(),)

    def defaults(self, segment: Segment) -> Mapping[str, str]:  # noqa: ARG002
        """Map each option that the segment may set to what holds where it does not; there are no others."""
        return {}

    @final
    def plain(self, segment: Segment) -> Segment:
        """Return the segment without the options that state what holds anyway, so that it is compiled once."""
        defaults = self.defaults(segment)
        own = tuple((key, value) for key, value in dict(segment.options).items() if defaults.get(key) != value)
        return dataclasses.replace(segment, options=own)

    def check_request(self, segment: Segment) -> None:  # noqa: B027 - a backend may take whatever it is asked for
        """Refuse what the request alone rules out, such as a precision or an option that the backend lacks.

        Cheap (no vendor import): asked before a child process is started for `compile`.

        Raises:
            CompilerError: with the reason.
        """

    @abc.abstractmethod
    def compile(self, segment: Segment, out_dir: Path) -> Artefact:
        """Compile the segment, whose graph lies in `out_dir/segment.onnx`, into `out_dir`.

        Runs inside a child process with a time and a memory limit.

        Raises:
            CompilerError: the backend refused or failed.
        """

    def is_outdated(self, artefact: Artefact) -> bool:  # noqa: ARG002
        """Tell whether what made an artefact provisional is gone, so that it is to be compiled again."""
        return False

    @final
    def made(
        self,
        segment: Segment,
        out_dir: Path,
        *,
        files: tuple[str, ...],
        delivered: tuple[str, ...] | None = None,
        facts: tuple[tuple[str, str], ...] = (),
        precision: str = "",
    ) -> Artefact:
        """Describe what `compile` wrote for a segment; the sandbox adds the seconds that it took.

        The size is that of the `delivered` files, by default of all. `precision` is that of the arithmetic, where an
        option made it another than the segment's.
        """
        from compilers.artefact import Artefact, tree_size_bytes

        return Artefact(
            compiler=self.name,
            compiler_version=self.version(),
            segment_digest=segment.digest,
            device=segment.device.name,
            processor=segment.processor,
            precision=precision or segment.precision,
            directory=out_dir,
            files=files,
            size_bytes=sum(tree_size_bytes(out_dir / name) for name in (files if delivered is None else delivered)),
            compile_s=0.0,
            facts=facts,
        )

    def unsupported(self, graph: Graph) -> Mapping[str, str]:  # noqa: ARG002
        """Map each node that this backend is known to refuse to its reason."""
        return {}

    def cause(self, reason: str) -> Cause:  # noqa: ARG002
        """Tell which kind of cause a reason of `unsupported`, `placement` or a `CompilerError` states."""
        return Cause.UNTOLD

    def load(self, artefact: Artefact) -> Session:
        """Load an artefact for running here."""
        raise CompilerError(f"{self.name} cannot run {artefact.main_file.name} on this machine")

    def packings(self, artefact: Artefact) -> Mapping[str, tuple[Path, ...]]:
        """Map each way to pack an artefact for a device to its files, the one that a runtime loads first."""
        files = (artefact.directory / name for name in artefact.files)
        return {"whole": tuple(path for path in files if path.suffix not in _REPORTS)}

    def constant_outputs(self, artefact: Artefact) -> Mapping[str, np.ndarray[Any, Any]]:  # noqa: ARG002
        """Return the outputs of the segment that the artefact's own runtime does not give, as no input decides them."""
        return {}

    def estimate(self, artefact: Artefact) -> Estimate:
        """Return the cost that the artefact's own files tell, without running it."""
        raise CompilerError(f"{self.name} gives no estimate for {artefact.device}")

    def placement(self, artefact: Artefact) -> Placement:
        """Return where each node went, from what the compiler wrote, not from what was asked."""
        raise CompilerError(f"{self.name} does not tell where the nodes of {artefact.main_file.name} run")

    def profile(
        self,
        artefact: Artefact,
        inputs: Mapping[str, np.ndarray[Any, Any]],  # noqa: ARG002
        runs: int,  # noqa: ARG002
    ) -> tuple[KernelTime, ...]:
        """Run an artefact here that many times and return each kernel's time; what observes it takes time itself."""
        raise CompilerError(f"{self.name} does not tell how long each kernel of {artefact.main_file.name} takes")

    def trace(self, artefact: Artefact) -> Trace:
        """Return what each unit of the simulated chip did when, for an artefact compiled to keep that."""
        raise CompilerError(f"{self.name} keeps no trace of {artefact.main_file.name}")


def not_over_rpc(device: Device, backend: str) -> str | None:
    """Return None for a device without an address, else why a backend that cannot send anything there is out."""
    if device.address is None:
        return None
    return f"{backend} sends nothing to {device.address}; TVM does, and the device by its name has the other backends"


def missing_package(module: str, distribution: str) -> str | None:
    """Return None when the module can be imported, else a sentence with the way out; imports nothing."""
    if importlib.util.find_spec(module) is None:
        return f"Python package {distribution} is not installed here; run `pip install {distribution}`"
    return None


def distribution_version(distribution: str) -> str:
    """Return the installed version of a distribution, or "absent"."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def package_dir(module: str) -> Path | None:
    """Return the folder of a top-level package without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


LIBRARY_HASHES: Final[dict[tuple[tuple[str, int, int], ...], str]] = {}
"""What `library_hash` found, by path, size and time; children get it with their call, as it takes 0.1 s for each."""


def library_hash(*paths: Path) -> str:
    """Return 8 hex digits over the content of vendor libraries, remembered while size and time stay."""
    stamps = tuple((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in paths if p.exists())
    if stamps not in LIBRARY_HASHES:
        digest = hashlib.sha256()
        for path, _, _ in stamps:
            with Path(path).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        LIBRARY_HASHES[stamps] = digest.hexdigest()[:8]
    return LIBRARY_HASHES[stamps]
