"""Vendor code in a child process: a time and a memory limit, a log, and a crash that becomes CompilerError."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, cast

from compilers.adapter import LIBRARY_HASHES, CompilerError, DiedError, LimitError, PassingError
from compilers.artefact import Artefact, read_artefact, write_artefact
from compilers.compatibility import known_bad
from compilers.registry import get_compiler
from partition import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Ts = TypeVarTuple("Ts")
R = TypeVar("R")

REFUSAL_FILE: Final = "refusal.json"
_CANCELLED: Final = "was cancelled"
_STOPPED: Final = "was stopped at"
_POLL_S: Final = 0.02
_LOG_TAIL_BYTES: Final = 20_000
_LEAST_FREE_BYTES: Final = 1 << 20
_ROOT: Final = Path(__file__).resolve().parent.parent
_cancelled: Final = threading.Event()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one child may take: wall seconds, and resident bytes of the child and its own children."""

    time_s: float = 600.0
    memory_bytes: int = 12 << 30


def compile_segment(segment: Segment, root: Path, limits: Limits) -> Artefact:
    """Compile the segment below `root`, or return what an earlier run compiled from the same content.

    Raises:
        CompilerError: the backend refused, now or in an earlier run with the same versions, or it crashed
            or ran into a limit.
        PassingError: the versions installed are known to be bad together, also where an earlier run compiled it.
    """
    bad = known_bad(segment.compiler)
    if bad is not None:
        raise PassingError(bad)
    segment = get_compiler(segment.compiler).plain(segment)
    directory = artefact_dir(segment, root.resolve())  # the child works in another folder
    artefact = read_artefact(directory)
    if artefact is not None and not (artefact.provisional and get_compiler(segment.compiler).is_outdated(artefact)):
        return artefact
    if segment.tiles and not get_compiler(segment.compiler).takes_tiles:
        raise CompilerError(
            f"{segment.compiler} chooses tile sizes by itself and cannot be told any; leave the {len(segment.tiles)} "
            "tiles out of the plan"
        )
    get_compiler(segment.compiler).check_request(segment)
    from graphs import save  # brings onnx, which a cached compile does not need

    _raise_earlier_refusal(directory)
    with _scratch_beside(directory, instead_of=artefact) as scratch:
        save(segment.graph, scratch / "segment.onnx")
        (scratch / "request.json").write_text(json.dumps(segment.key(), indent=1), encoding="utf-8")
        try:
            in_child(
                _compile, _without_graph(segment), scratch, limits=limits, log=scratch / "compile.log", cwd=scratch
            )
        except CompilerError as error:
            if isinstance(error, PassingError):
                raise
            free_bytes = shutil.disk_usage(scratch).free
            if free_bytes < _LEAST_FREE_BYTES:  # whatever a vendor makes of that, it is no word on the graph
                full = f"the disk of {root} was full ({free_bytes} bytes are free): {error.reason}"
                raise PassingError(full, log=error.log) from error
            (scratch / REFUSAL_FILE).write_text(json.dumps(_refusal(error)), encoding="utf-8")
            raise
    published = read_artefact(directory)
    if published is None:
        raise CompilerError(f"{segment.compiler} finished but {directory} holds no complete artefact")
    return published


def artefact_dir(segment: Segment, root: Path) -> Path:
    """Name the folder of a segment's artefact: by content, device file, versions, machine and our adapters' code."""
    figures = dataclasses.replace(segment.device, sources={}, thermal=None)  # neither is compiled for
    compiler = get_compiler(segment.compiler)
    made_by = f"{compiler.version()}:{compiler.machine(segment.device, segment.processor)}:{adapters_hash()}"
    key = f"{segment.digest}:{figures}:{made_by}"
    digest12 = hashlib.sha256(key.encode()).hexdigest()[:12]
    model = f"{_file_safe(segment.graph.name)}-{segment.graph.digest[:12]}"
    return root / model / f"{digest12}-{segment.compiler}-{_file_safe(segment.device.name)}-{segment.precision}"


def in_child(
    function: Callable[[*Ts], R],
    *args: *Ts,
    limits: Limits,
    log: Path | None = None,
    cwd: Path | None = None,
) -> R:
    """Call a module-level function in a fresh process and return its value.

    What the child prints goes to `log`. A `CompilerError` in the child comes back as it is.

    Raises:
        DiedError: the child died by a signal or passed a limit; with the end of its log.
        CompilerError: the child raised.
    """
    with tempfile.TemporaryDirectory(prefix="edgefrontier-") as folder:
        answer = Path(folder) / "answer.pickle"
        log = log or Path(folder) / "child.log"
        request = pickle.dumps((function, args, str(answer), dict(LIBRARY_HASHES)))
        with log.open("wb") as sink:
            process = _start(request, sink, cwd or Path(folder))
            ended = _wait(process, limits)
        return cast("R", _read_answer(answer, log, ended, _label(function, args)))


def cancel_children() -> None:
    """End every running child, and every later one at once: for Ctrl-C while other threads compile."""
    _cancelled.set()


def _without_graph(segment: Segment) -> dict[str, Any]:
    """Take a segment apart for the trip to the child, which reads the graph from `segment.onnx`."""
    parts = {f.name: getattr(segment, f.name) for f in dataclasses.fields(segment) if f.name != "graph"}
    return {**parts, "digest": segment.digest}


def _compile(parts: dict[str, Any], out_dir: Path) -> None:
    from graphs import load

    digest = parts.pop("digest")
    segment = Segment(graph=load(out_dir / "segment.onnx"), **parts)
    start = time.perf_counter()
    artefact = get_compiler(segment.compiler).compile(segment, out_dir)
    write_artefact(dataclasses.replace(artefact, segment_digest=digest, compile_s=time.perf_counter() - start))


def _start(request: bytes, sink: Any, cwd: Path) -> subprocess.Popen[bytes]:  # noqa: ANN401
    # -P keeps the child's folder, which holds vendor files, off its import path.
    command = [sys.executable, "-P", "-c", "from compilers.child import main; main()"]
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=sink,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "TQDM_DISABLE": "1"},
        start_new_session=True,  # so that a limit ends its children too, and Ctrl-C reaches us alone
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # a child that died at once is reported by _read_answer
        process.stdin.write(request)
        process.stdin.close()
    return process


def _wait(process: subprocess.Popen[bytes], limits: Limits) -> str:
    """Wait for the end of the child and say how it ended: "" when it came by itself."""
    deadline = time.monotonic() + limits.time_s
    next_memory_check = time.monotonic()
    try:
        while process.poll() is None:
            now = time.monotonic()
            if _cancelled.is_set():
                return _CANCELLED
            if now > deadline:
                return f"{_STOPPED} its time limit of {limits.time_s:g} s"
            if now > next_memory_check:
                next_memory_check = now + 10 * _POLL_S
                if _resident_bytes(process.pid) > limits.memory_bytes:
                    return f"{_STOPPED} its memory limit of {limits.memory_bytes / 2**30:.3g} GiB"
            time.sleep(_POLL_S)
    finally:
        _end(process)
    return f"crashed with {signal_name(-process.returncode)}" if process.returncode < 0 else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _resident_bytes(pid: int) -> int:
    import psutil

    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for member in family:
        with contextlib.suppress(psutil.Error):  # it ended since we listed it
            total += member.memory_info().rss
    return total


def _read_answer(answer: Path, log: Path, ended: str, label: str) -> Any:  # noqa: ANN401
    if not answer.exists():
        kind = PassingError if ended == _CANCELLED else LimitError if ended.startswith(_STOPPED) else DiedError
        raise kind(f"{label} {ended or 'ended without an answer'}", log=_tail(log))
    value, error = pickle.loads(answer.read_bytes())  # noqa: S301 - our own child wrote it
    if error is None:
        return value
    if not error.log:
        error.log = _tail(log)
    raise error


def _refusal(error: CompilerError) -> dict[str, Any]:
    return {"reason": error.reason, "log": error.log, "nodes": error.nodes}


def _raise_earlier_refusal(directory: Path) -> None:
    refusal = directory / REFUSAL_FILE
    if refusal.exists():
        try:
            entry = json.loads(refusal.read_text(encoding="utf-8"))
            error = CompilerError(entry["reason"], log=entry["log"], nodes=entry["nodes"])
        except (json.JSONDecodeError, KeyError, TypeError):
            return
        raise error


@contextlib.contextmanager
def _scratch_beside(directory: Path, *, instead_of: Artefact | None) -> Iterator[Path]:
    """Give a scratch folder that takes the place of `directory`, so that no reader sees it half-made.

    An outdated artefact stays where it is until there is a better one.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".", suffix=".tmp", dir=directory.parent))
    try:
        yield scratch
    except CompilerError:
        _take_place(scratch, directory, instead_of=None)
        raise
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    _take_place(scratch, directory, instead_of=instead_of)


def _take_place(scratch: Path, directory: Path, *, instead_of: Artefact | None) -> None:
    """Rename `scratch` to `directory`, unless another run published the same content first and may be reading it."""
    scratch.chmod(0o755)
    aside = scratch.with_suffix(".old")
    with contextlib.suppress(OSError):
        if read_artefact(directory) == instead_of:
            with contextlib.suppress(FileNotFoundError):
                directory.rename(aside)
            scratch.rename(directory)
    for left in (aside, scratch):
        shutil.rmtree(left, ignore_errors=True)


@functools.cache
def adapters_hash() -> str:
    """Hash our code that decides what comes out of a compile: the adapters, and what they import of ours."""
    digest = hashlib.sha256()
    for package in ("compilers", "graphs", "partition"):
        for path in sorted((_ROOT / package).rglob("*.py")):
            if not {"zoo", "search"}.intersection(path.parts[len(_ROOT.parts) :]):  # they make graphs and plans
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _label(function: Callable[..., object], args: tuple[object, ...]) -> str:
    for arg in args:
        if isinstance(arg, Artefact):
            return arg.compiler
        if isinstance(arg, dict) and isinstance(arg.get("compiler"), str):
            return str(arg["compiler"])
    return function.__name__.strip("_")


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number where it has none (real-time signals)."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(log: Path) -> str:
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        return file.read().decode(errors="replace").strip()


def _file_safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name)[:60] or "graph"
