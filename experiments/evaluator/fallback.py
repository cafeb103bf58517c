"""Failing safely (R20): a session with a CPU session behind it, a time limit and a circuit breaker."""

from __future__ import annotations

import dataclasses
import enum
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from compilers import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphs import TensorSpec

Arrays = dict[str, NDArray[Any]]
_KEPT_EVENTS: Final = 1000


class FallbackError(RuntimeError):
    """Neither session gave an answer; the message has both reasons."""


class InputError(ValueError):
    """What the caller gave is not what the model takes, which is no failure of a session; the message says both."""


class NotReadyError(RuntimeError):
    """A session that is still starting: it cannot answer now, which is no failure."""


class State(enum.StrEnum):
    """CLOSED: the first session is used. OPEN: it is left alone. HALF_OPEN: one call tries it again."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that went otherwise than planned: when (the session's clock), what, and the reason."""

    at_s: float
    what: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Breaker:
    """When to give up on the first session, and when to try it again."""

    time_limit_s: float = 1.0
    failures: int = 5
    pause_s: float = 30.0


class FallbackSession(Session):
    """Runs the first session and, when that fails, answers from the second one.

    A call fails when it raises, takes longer than the limit, or gives outputs that are none: missing, of the wrong
    dtype or shape, NaN or infinite where the second session's are not (the infinities of a mask are the model's own).
    After `failures` in a row the first session is left alone for `pause_s`, then tried with one call. A call that ran
    into its limit cannot be stopped here: until it returns, the first session counts as busy and is not called again.
    Vendor code belongs in a `ChildSession`, which can be ended.
    """

    def __init__(
        self,
        first: Session,
        second: Session,
        outputs: Sequence[TensorSpec],
        *,
        inputs: Sequence[TensorSpec] = (),
        breaker: Breaker | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        """Take the sessions, what they must give, and what a call must bring."""
        self._first, self._second, self._outputs, self._inputs = first, second, outputs, inputs
        self._breaker, self._clock, self._on_event = breaker or Breaker(), clock, on_event
        self._state, self._failures, self._opened_s = State.CLOSED, 0, 0.0
        self._stuck: _Call | None = None
        self._events: list[Event] = []
        self.calls = self.answered_by_second = 0

    @property
    def state(self) -> State:
        """The state of the circuit."""
        return self._state

    @property
    def events(self) -> tuple[Event, ...]:
        """The last thousand events, the oldest first."""
        return tuple(self._events)

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Run once.

        Raises:
            InputError: the inputs are not what the model takes; neither session was called.
            FallbackError: the second session failed, too.
        """
        self._see_inputs(inputs)
        self.calls += 1
        reason = self._not_now()
        if reason is None:
            outputs, reason = self._try_first(inputs)
            if outputs is not None:
                return self._judged(outputs, inputs)
            if reason is not None:
                self._failed(reason)
        self.answered_by_second += 1
        return self._from_second(inputs, reason)

    def close(self) -> None:
        """Close both sessions; one that is stuck in a call is left to the end of the process."""
        if self._stuck is None or self._stuck.done:
            self._first.close()
        self._second.close()

    def _see_inputs(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        for spec in self._inputs:
            wrong = _wrong(inputs, spec)
            if wrong:
                raise InputError(f"input {spec.name!r} {wrong}; the model takes {spec.name} {_kind(spec)}")

    def _not_now(self) -> str | None:
        """Say why the first session is not to be called; half-open the circuit when its pause is over."""
        if self._stuck is not None:
            if not self._stuck.done:
                return "it is still busy with a call that ran into its limit"
            self._stuck = None
            self._log("returned", "the call that ran into its limit has come back")
        if self._state is State.OPEN:
            if self._clock() - self._opened_s < self._breaker.pause_s:
                return "the circuit is open"
            self._state = State.HALF_OPEN
            self._log("half-open", f"trying again after {self._breaker.pause_s:g} s")
        return None

    def _try_first(self, inputs: Mapping[str, NDArray[Any]]) -> tuple[Arrays | None, str | None]:
        """Return (outputs, None), or (None, the reason of the failure), which is None while it is starting."""
        call = _Call(self._first, inputs)
        if not call.wait(self._breaker.time_limit_s):
            self._stuck = call
            return None, f"no answer within {self._breaker.time_limit_s:g} s"
        if isinstance(call.error, NotReadyError):
            self._log_once("not ready", str(call.error))
            return None, None
        if call.error is not None:
            return None, one_line(call.error)
        reason = _unusable(call.outputs, self._outputs)
        return (None, reason) if reason else (call.outputs, None)

    def _judged(self, outputs: Arrays, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return the outputs, or the second session's where those are finite and these are not."""
        lost = _not_finite(outputs, self._outputs)
        if lost:
            try:
                answer = self._from_second(inputs, lost)
            except FallbackError:
                self._failed(lost)
                raise
            lost = _not_finite(outputs, self._outputs, beside=answer)
        if not lost:
            self._succeeded()
            return outputs
        self._failed(lost)
        self.answered_by_second += 1
        return answer

    def _succeeded(self) -> None:
        if self._state is State.HALF_OPEN:
            self._log("closed", "the first session answers again")
        self._state, self._failures = State.CLOSED, 0

    def _failed(self, reason: str) -> None:
        self._failures += 1
        self._log("failure", reason)
        if self._state is State.HALF_OPEN or self._failures >= self._breaker.failures:
            self._state, self._opened_s = State.OPEN, self._clock()
            self._log("open", f"{self._failures} failures in a row, the last: {reason}")

    def _from_second(self, inputs: Mapping[str, NDArray[Any]], reason: str | None) -> Arrays:
        reason = reason or "it is starting"
        try:
            outputs = self._second.run(inputs)
        except Exception as error:
            self._log("both failed", one_line(error))
            raise FallbackError(f"first session: {reason}; second session: {one_line(error)}") from error
        broken = _unusable(outputs, self._outputs)
        if broken:
            self._log("both failed", broken)
            raise FallbackError(f"first session: {reason}; second session: {broken}")
        return outputs

    def _log_once(self, what: str, reason: str) -> None:
        if not self._events or self._events[-1].what != what:
            self._log(what, reason)

    def _log(self, what: str, reason: str) -> None:
        event = Event(at_s=self._clock(), what=what, reason=reason)
        self._events = [*self._events[-(_KEPT_EVENTS - 1) :], event]
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception as error:  # noqa: BLE001 - a full disk under a log must not cost the caller the answer
            untold = Event(at_s=event.at_s, what="not told", reason=one_line(error))
            self._events.append(untold)


class _Call:
    """One call in a thread of its own, which can be waited for and, when it is stuck, be left behind."""

    def __init__(self, session: Session, inputs: Mapping[str, NDArray[Any]]) -> None:
        self.outputs: Arrays | None = None
        self.error: BaseException | None = None
        self._session, self._inputs = session, inputs
        self._thread = threading.Thread(target=self._run, name="first session", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """True once the call has returned or raised."""
        return not self._thread.is_alive()

    def wait(self, limit_s: float) -> bool:
        """Wait for the call, and tell whether it ended in time."""
        self._thread.join(limit_s)
        return self.done

    def _run(self) -> None:
        try:
            self.outputs = self._session.run(self._inputs)
        except BaseException as error:  # noqa: BLE001 - whatever a backend throws, the caller gets an answer
            self.error = error


def one_line(error: BaseException) -> str:
    """Write an error with its type on one line, as a log of events has it; a runtime's message may have many."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _unusable(outputs: object, expected: Sequence[TensorSpec]) -> str:
    """Say what makes outputs unusable, "" when nothing does."""
    if not isinstance(outputs, dict):
        return f"it returned {type(outputs).__name__} instead of outputs by name"
    for spec in expected:
        wrong = _wrong(outputs, spec)
        if wrong:
            return f"output {spec.name!r} {wrong}" + ("" if spec.name not in outputs else f" instead of {_kind(spec)}")
    return ""


def _wrong(arrays: Mapping[str, NDArray[Any]], spec: TensorSpec) -> str:
    """Say how an array differs from what it should be, "" when it does not; of a dtype that numpy lacks, the shape."""
    if spec.name not in arrays:
        return "is missing"
    array = np.asarray(arrays[spec.name])
    other = spec.dtype in np.sctypeDict and array.dtype.name != spec.dtype
    if other or spec.shape not in {None, array.shape}:
        return f"is {array.dtype.name}{_sizes(array.shape)}"
    return ""


def _kind(spec: TensorSpec) -> str:
    return spec.dtype if spec.shape is None else f"{spec.dtype}{_sizes(spec.shape)}"


def _sizes(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _not_finite(outputs: Arrays, expected: Sequence[TensorSpec], beside: Arrays | None = None) -> str:
    """Say which output holds NaN or infinite values, beside others only where those are finite; "" for none."""
    for name in (spec.name for spec in expected):
        bad = _bad(outputs[name])
        if beside is not None and bad.shape == np.shape(beside[name]):
            bad &= ~_bad(beside[name])
        if bad.any():
            return f"output {name!r} holds {int(bad.sum())} NaN or infinite values"
    return ""


def _bad(values: NDArray[Any]) -> NDArray[np.bool_]:
    array = np.asarray(values)
    return ~np.isfinite(array) if array.dtype.kind in "fc" else np.zeros(array.shape, bool)
