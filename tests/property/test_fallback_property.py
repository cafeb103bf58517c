from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compilers import Session
from experiments.evaluator.fallback import Breaker, Event, FallbackError, FallbackSession, InputError, State
from graphs import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

GOOD = {"y": np.full((1, 2), 1.0, dtype=np.float32)}
CPU = {"y": np.full((1, 2), 2.0, dtype=np.float32)}
OUTPUTS = (TensorSpec(name="y", shape=(1, 2), dtype="float32"),)
FAULTS: dict[str, Any] = {
    "nan": {"y": np.array([[1.0, np.nan]], dtype=np.float32)},
    "dtype": {"y": np.zeros((1, 2))},
    "shape": {"y": np.zeros((2, 2), dtype=np.float32)},
    "missing": {},
    "none": None,
    "raise": RuntimeError("the driver is gone"),
}


class Scripted(Session):
    """A backend that does what the script says, one entry a call, and the last for ever."""

    def __init__(self, script: Sequence[Any]) -> None:
        self.script, self.calls = list(script), 0
        self.release = threading.Event()
        self.closed = False

    def run(self, _inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        step = self.script[min(self.calls, len(self.script) - 1)]
        self.calls += 1
        if isinstance(step, str) and step == "hang":
            self.release.wait(30.0)
            return GOOD
        if isinstance(step, Exception):
            raise step
        return step  # type: ignore[no-any-return]

    def close(self) -> None:
        self.closed = True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def session(script: Sequence[Any], clock: Clock, **breaker: float) -> tuple[Scripted, FallbackSession]:
    first = Scripted(script)
    options: dict[str, Any] = {"time_limit_s": 5.0, "failures": 5, "pause_s": 30.0, **breaker}
    return first, FallbackSession(first, Scripted([CPU]), OUTPUTS, breaker=Breaker(**options), clock=clock)


steps = st.lists(st.tuples(st.sampled_from(["good", *FAULTS]), st.floats(0.0, 20.0)), min_size=1, max_size=60)


@given(steps)
@settings(deadline=None, max_examples=60)
def test_every_call_is_answered_rightly_and_the_circuit_keeps_its_rules(script: list[tuple[str, float]]) -> None:
    clock = Clock()
    outcomes = [GOOD if kind == "good" else FAULTS[kind] for kind, _ in script]
    first, guarded = session(outcomes, clock)
    failures, opened_at = 0, None
    for kind, pause_s in script:
        clock.now += pause_s
        before = first.calls
        answer = guarded.run({})
        called = first.calls > before
        # The model of the breaker, written down a second time.
        expect_called = opened_at is None or clock.now - opened_at >= 30.0
        assert called == expect_called
        if not called:
            assert answer is CPU
            continue
        step = outcomes[before]
        if step is GOOD:
            assert answer is GOOD
            failures, opened_at = 0, None
        else:
            assert answer is CPU
            failures += 1
            if failures >= 5 or opened_at is not None:
                opened_at = clock.now
        assert guarded.state == (State.CLOSED if opened_at is None else State.OPEN)
        assert kind in {"good", *FAULTS}
    failed = [event for event in guarded.events if event.what == "failure"]
    assert len(failed) == sum(outcome is not GOOD for outcome in outcomes[: first.calls])
    assert guarded.calls == len(script)


def test_five_failures_open_it_and_one_success_after_the_pause_closes_it() -> None:
    clock = Clock()
    first, guarded = session([*[FAULTS["raise"]] * 5, GOOD], clock)
    for _ in range(8):
        guarded.run({})
    assert first.calls == 5
    clock.now = 30.0
    assert guarded.run({}) is GOOD
    assert [event.what for event in guarded.events] == ["failure"] * 5 + ["open", "half-open", "closed"]
    assert "RuntimeError: the driver is gone" in guarded.events[0].reason


def test_a_failure_after_the_pause_opens_it_again_at_once() -> None:
    clock = Clock()
    first, guarded = session([FAULTS["nan"]], clock)
    for _ in range(5):
        guarded.run({})
    clock.now = 31.0
    guarded.run({})
    guarded.run({})
    assert first.calls == 6
    assert guarded.state is State.OPEN


def test_a_call_that_hangs_is_answered_in_time_and_not_called_again_until_it_is_back() -> None:
    clock = Clock()
    first, guarded = session(["hang", GOOD], clock, time_limit_s=0.05)
    assert guarded.run({}) is CPU
    assert guarded.run({}) is CPU
    assert first.calls == 1
    first.release.set()
    while guarded.run({}) is CPU:
        pass
    assert first.calls == 2
    assert "no answer within 0.05 s" in guarded.events[0].reason


def test_when_both_fail_both_reasons_are_told() -> None:
    guarded = FallbackSession(Scripted([FAULTS["nan"]]), Scripted([FAULTS["raise"]]), OUTPUTS)
    with pytest.raises(FallbackError, match=r"first session: output 'y' holds 1 NaN.*second session: RuntimeError"):
        guarded.run({})
    broken = FallbackSession(Scripted([FAULTS["raise"]]), Scripted([FAULTS["shape"]]), OUTPUTS)
    with pytest.raises(FallbackError, match=r"second session: output 'y' is float32\[2,2\] instead of float32\[1,2\]"):
        broken.run({})


def test_events_reach_a_listener_and_closing_closes_both() -> None:
    heard: list[Event] = []
    first, second = Scripted([FAULTS["missing"]]), Scripted([CPU])
    with FallbackSession(first, second, OUTPUTS, on_event=heard.append) as guarded:
        guarded.run({})
    assert heard[0].reason == "output 'y' is missing"
    assert first.closed
    assert second.closed


def test_infinities_of_the_model_itself_are_no_failure_and_those_of_the_first_alone_are() -> None:
    """A mask's -inf, or a NaN that came in: the CPU gives the same, so that no call may stay without an answer."""
    masked = {"y": np.array([[-np.inf, 1.0]], dtype=np.float32)}
    spoilt = {"y": np.array([[-np.inf, np.nan]], dtype=np.float32)}
    guarded = FallbackSession(Scripted([*[masked] * 6, spoilt]), Scripted([masked]), OUTPUTS)
    for _ in range(6):
        guarded.run({})
    assert (guarded.state, guarded.events, guarded.answered_by_second) == (State.CLOSED, (), 0)
    assert guarded.run({}) is masked
    assert [event.reason for event in guarded.events] == ["output 'y' holds 1 NaN or infinite values"]
    assert guarded.answered_by_second == 1


def test_a_listener_that_fails_costs_no_answer() -> None:
    def full(_event: Event) -> None:
        raise OSError(28, "No space left on device")

    guarded = FallbackSession(Scripted([FAULTS["nan"]]), Scripted([CPU]), OUTPUTS, on_event=full)
    assert guarded.run({}) is CPU
    assert [event.what for event in guarded.events] == ["failure", "not told"]
    assert "No space left" in guarded.events[1].reason


@pytest.mark.parametrize(
    ("inputs", "wrong"),
    [
        ({}, "is missing"),
        ({"mel": np.zeros((1, 80, 4))}, "is float64[1,80,4]"),
        ({"mel": np.zeros((80, 4), np.float32)}, "is float32[80,4]"),
        ({"mel": [[1.0]]}, "is float64[1,1]"),
    ],
)
def test_inputs_that_the_model_does_not_take_are_told_to_the_caller_and_do_not_count(
    inputs: dict[str, Any], wrong: str
) -> None:
    first = Scripted([GOOD])
    takes = (
        TensorSpec(name="mel", shape=(1, 80, 4), dtype="float32"),
        TensorSpec(name="any", shape=None, dtype="string"),
    )
    guarded = FallbackSession(first, Scripted([CPU]), OUTPUTS, inputs=takes)
    for _ in range(9):
        with pytest.raises(InputError) as told:
            guarded.run({"any": np.array(["a"], object), **inputs})
    assert str(told.value) == f"input 'mel' {wrong}; the model takes mel float32[1,80,4]"
    assert (guarded.state, guarded.events, guarded.calls, first.calls) == (State.CLOSED, (), 0, 0)
    good = {"mel": np.zeros((1, 80, 4), np.float32), "any": np.array(["a"], object)}
    assert guarded.run(good) is GOOD


def test_a_message_of_many_lines_is_an_event_of_one() -> None:
    failing = RuntimeError("[ONNXRuntimeError] : 2\nGot: 3\r\n  Expected: 4\n")
    guarded = FallbackSession(Scripted([failing]), Scripted([failing]), OUTPUTS)
    with pytest.raises(FallbackError) as told:
        guarded.run({})
    one = "RuntimeError: [ONNXRuntimeError] : 2 Got: 3 Expected: 4"
    assert [event.reason for event in guarded.events] == [one, one]
    assert str(told.value) == f"first session: {one}; second session: {one}"
