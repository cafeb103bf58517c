"""A plan in a process of its own, which is ended when it hangs and started anew when it died (R20)."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import numpy as np
import psutil
from numpy.typing import NDArray

from compilers import Artefact, CompilerError, Limits, Session, end_with_parent, get_compiler, signal_name
from experiments.evaluator.fallback import NotReadyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from partition import Plan

R = TypeVar("R")
Arrays = dict[str, NDArray[Any]]
_ROOT: Final = Path(__file__).resolve().parents[2]
_POLL_S: Final = 0.01
_LOOK_S: Final = 1.0


class EndedError(RuntimeError):
    """The process of a plan hung and was ended, or died; the message says how."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One segment of a compiled plan: its artefact, and the tensors that it reads."""

    artefact: Artefact
    inputs: tuple[str, ...]


def steps_of(plan: Plan, artefacts: Sequence[Artefact]) -> tuple[Step, ...]:
    """Join the artefacts of a plan with what each of them reads."""
    return tuple(
        Step(artefact=artefact, inputs=tuple(spec.name for spec in segment.graph.inputs()))
        for segment, artefact in zip(plan.segments, artefacts, strict=True)
    )


class PlanSession(Session):
    """All segments of a plan, loaded in this process and run one after the other on the tensors that pass them."""

    def __init__(self, steps: Sequence[Step], outputs: Sequence[str]) -> None:
        """Load every artefact; `outputs` names what a run returns: the graph's outputs, read by a segment or not.

        Raises:
            CompilerError: a backend cannot load its artefact here.
        """
        with contextlib.ExitStack() as stack:
            self._sessions = [stack.enter_context(get_compiler(s.artefact.compiler).load(s.artefact)) for s in steps]
            self._open = stack.pop_all()
        self._steps, self._outputs = tuple(steps), tuple(outputs)

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Run every segment once."""
        tensors = dict(inputs)
        for step, session in zip(self._steps, self._sessions, strict=True):
            tensors |= session.run({name: tensors[name] for name in step.inputs})
        return {name: np.asarray(tensors[name]) for name in self._outputs}

    def close(self) -> None:
        """Close the segments' sessions."""
        self._open.close()


class ChildSession(Session):
    """A plan in a child process: a call past its time limit ends the process, and so does a crash.

    The next call then starts a new one and says `NotReadyError` until that has loaded. What the child prints goes
    to `log`. A call costs a trip of its arrays through a pipe.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        outputs: Sequence[str],
        *,
        time_limit_s: float,
        limits: Limits | None = None,
        log: Path | None = None,
    ) -> None:
        """Start the process; it loads in the background, within `limits`, whose memory holds for all of its life."""
        self._plan = tuple(steps), tuple(outputs)
        self._limit_s, self._limits = time_limit_s, limits or Limits()
        self._next_look_s = 0.0
        self._log = log or Path(os.devnull)
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        # The process ends with the thread that started it, and a call's own thread is gone after the call.
        self._starter = ThreadPoolExecutor(1, "starts the plan's process")
        self._start()

    @property
    def pid(self) -> int | None:
        """The process that runs the plan, None while there is none."""
        return None if self._process is None else self._process.pid

    def wait(self) -> None:
        """Wait until the plan has loaded.

        Raises:
            EndedError: the process died, or did not load within the limit.
            CompilerError: a backend cannot load its artefact.
        """
        while not self._loaded():
            time.sleep(_POLL_S)

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Run once in the child.

        Raises:
            NotReadyError: the process has not loaded yet.
            EndedError: no answer within the limit, or too much memory, and the process was ended; or it died.
            CompilerError: the backend refused or failed; the process goes on.
        """
        if self._process is None:
            self._start()
        if not self._loaded():
            raise NotReadyError("the plan's process is starting")
        with self._ended_after(self._limit_s) as expired:
            try:
                self._pipe.send(dict(inputs))
                outputs = self._received()
            except (EOFError, OSError) as error:
                if expired.is_set():
                    told = f"no answer within {self._limit_s:g} s; the plan's process was ended"
                    raise EndedError(told) from error
                raise EndedError(self._death()) from error
        self._end_when_large()
        return outputs

    def close(self) -> None:
        """End the process; there is no other one after that."""
        self._end()
        self._starter.shutdown()

    def _start(self) -> None:
        ours, theirs = connection.Pipe()
        command = [sys.executable, "-P", "-c", f"from {__name__} import serve; serve({theirs.fileno()})"]
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        with self._log.open("ab") as sink:
            self._process = self._starter.submit(
                subprocess.Popen,
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": path},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # so that what the vendor's code started ends with it
            ).result()
        theirs.close()
        self._pipe, self._ready, self._started_s = ours, False, time.monotonic()
        self._pipe.send(self._plan)

    def _loaded(self) -> bool:
        if self._ready or self._process is None:
            return self._ready
        try:
            if self._pipe.poll():
                self._received()
                self._ready = True
            elif time.monotonic() - self._started_s > self._limits.time_s:
                self._end()
                raise EndedError(f"the plan did not load within {self._limits.time_s:g} s; its process was ended")
        except (EOFError, OSError) as error:
            raise EndedError(f"while it loaded, {self._death()}") from error
        except CompilerError:
            self._end()  # it loaded nothing, so there is nothing to keep
            raise
        return self._ready

    def _received(self) -> Arrays:
        """Return the child's answer, or raise what it raised."""
        value, error = self._pipe.recv()
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def _ended_after(self, limit_s: float) -> Iterator[threading.Event]:
        """End the process when the block takes longer: a pipe to a process that hangs cannot be written to either."""
        expired = threading.Event()

        def end() -> None:
            expired.set()
            self._kill()

        timer = threading.Timer(limit_s, end)
        timer.daemon = True
        timer.start()
        try:
            yield expired
        finally:
            timer.cancel()
            timer.join()
            if expired.is_set():
                self._end()

    def _end_when_large(self) -> None:
        """Look once a second whether the process has outgrown its memory: a runtime may leak a little each call."""
        now = time.monotonic()
        if now < self._next_look_s or self._process is None:
            return
        self._next_look_s = now + _LOOK_S
        with contextlib.suppress(psutil.NoSuchProcess):  # the next call tells how it ended
            if psutil.Process(self._process.pid).memory_info().rss > self._limits.memory_bytes:
                self._end()
                limit = f"{self._limits.memory_bytes / 2**30:.3g} GiB"
                raise EndedError(f"the plan's process took more memory than its limit of {limit} and was ended")

    def _death(self) -> str:
        """Say how the process ended, and forget it."""
        process = self._process
        assert process is not None, "only a started process has a pipe"
        self._end()
        code = process.returncode
        if code is not None and code < 0:
            return f"the plan's process crashed with {signal_name(-code)}"
        return f"the plan's process ended with exit code {code}"

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _end(self) -> None:
        if self._process is None:
            return
        self._pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)  # one that crashed says by which signal, if it is let
        self._kill()
        self._process.wait()
        self._process, self._ready = None, False


def serve(fd: int) -> NoReturn:
    """Load the plan that comes through the pipe, then answer one call after the other until the pipe is closed."""
    faulthandler.enable()
    end_with_parent()  # also while it hangs and cannot see that the pipe is closed
    pipe: connection.Connection[Any, Any] = connection.Connection(fd)
    with contextlib.suppress(EOFError, OSError):
        session = _loaded(pipe, pipe.recv())
        while session is not None:
            outputs, error = _attempt(functools.partial(session.run, pipe.recv()))
            pipe.send((outputs, error))
    os._exit(0)  # without the vendor's teardown, which may crash after good work


def _loaded(pipe: connection.Connection[Any, Any], plan: tuple[Sequence[Step], Sequence[str]]) -> PlanSession | None:
    session, error = _attempt(functools.partial(PlanSession, *plan))
    pipe.send((None, error))
    return session


def _attempt(work: Callable[[], R]) -> tuple[R | None, CompilerError | None]:
    """Return (value, None), or (None, what was raised, as an error that can go through a pipe)."""
    try:
        return work(), None
    except CompilerError as error:
        return None, error
    except Exception as error:  # noqa: BLE001 - whatever a backend throws is told to the parent
        return None, CompilerError(f"{type(error).__name__}: {error}")
