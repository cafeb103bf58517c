from __future__ import annotations

import pytest

from experiments.units import counted, interval, joules, seconds, size, tick


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (seconds(0.0183), "18.3 ms"),
        (seconds(9.996e-4), "1000 us"),
        (seconds(12.0), "12.0 s"),
        (seconds(1320.0), "1320 s"),
        (seconds(None), "-"),
        (joules(1.24e-2), "12.4 mJ"),
        (joules(0.0), "0 J"),
        (size(2_780_000), "2.78 MB"),
        (size(0.02), "0.0200 B"),
        (tick(1e-3, "J"), "1 mJ"),
        (counted(1, "candidate"), "1 candidate"),
        (counted(0, "candidate"), "0 candidates"),
        (tick(0.25, "s"), "250 ms"),
        (interval("1 ms", "1 ms", "1 ms"), "1 ms"),
        (interval("2 ms", "1 ms", "3 ms"), "2 ms (1 ms to 3 ms)"),
    ],
)
def test_values_read_as_people_write_them(text: str, expected: str) -> None:
    assert text == expected
