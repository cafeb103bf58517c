"""The table MIL operation -> kernel, and the account of which arguments a kernel read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from compilers.adapter import CompilerError

Array = np.ndarray[Any, Any]


class Arguments:
    """The arguments of one operation; reading marks them, so that none is overlooked.

    float16 arrays are handed out as float32: kernels compute in float32 and the executor rounds the result.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._read: set[str] = set()

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - an array, a tuple of arrays or a string
        self._read.add(key)
        if key not in self._values:
            raise CompilerError(f"argument {key} is missing")
        return self._values[key]

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - as above
        """Return an argument or MIL's default for it."""
        self._read.add(key)
        return self._values.get(key, default)

    def ints(self, key: str, default: list[int] | None = None) -> list[int]:
        """Return an argument as a list of integers."""
        value = self.get(key)
        if value is None:
            if default is None:
                raise CompilerError(f"argument {key} is missing")
            return default
        return [int(v) for v in np.asarray(value).reshape(-1)]

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a scalar argument as an integer."""
        return self.ints(key, None if default is None else [default])[0]

    def number(self, key: str, default: float | None = None) -> float:
        """Return a scalar argument as a float."""
        value = self[key] if default is None else self.get(key, default)
        return float(np.asarray(value).reshape(-1)[0])

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a scalar argument as a bool."""
        return bool(np.asarray(self.get(key, default)).reshape(-1)[0])

    def text(self, key: str, *allowed: str, default: str | None = None) -> str:
        """Return a string argument; refuse one that is not among those allowed."""
        value = str(self[key] if default is None else self.get(key, default))
        if value not in allowed:
            raise CompilerError(f"{key}={value!r} is not handled, only {', '.join(allowed)}")
        return value

    def unread(self) -> list[str]:
        """List the arguments that nothing has read."""
        return sorted(set(self._values) - self._read)


Kernel = Callable[[Arguments], Any]

KERNELS: Final[dict[str, Kernel]] = {}


def kernel(*types: str) -> Callable[[Kernel], Kernel]:
    """Register a function as the kernel of these MIL operations."""

    def register(function: Kernel) -> Kernel:
        for name in types:
            assert name not in KERNELS, f"two kernels for {name}"
            KERNELS[name] = function
        return function

    return register
