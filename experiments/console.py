"""What a person sees: the console and the tables that the commands share, and what goes on while it takes long."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_LONG_S: Final = 10.0  # from which a step's time is told: the NPU's emulator takes minutes for some models
_FILE_COLUMNS: Final = 240  # of a table that goes to a file or a pipe, where nothing need be cut


def open_console() -> Console:
    """Return a console that is as wide as the terminal, and wide where there is none.

    It prints text as it is: names of nodes and reasons of vendors hold brackets and colons, which are no markup here.
    """
    from rich.console import Console

    width = None if sys.stdout.isatty() else _FILE_COLUMNS
    return Console(soft_wrap=True, width=width, markup=False, highlight=False, emoji=False)


def plain_table(*headings: str, **column: Any) -> Table:  # noqa: ANN401 - what rich's `add_column` takes
    """Return a table without lines; `column` is said of each heading."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        table.add_column(heading, **column)
    return table


class Progress:
    """A bar on a terminal, a plain line per candidate elsewhere; both say what takes long and when it is stopped."""

    def __init__(self, total: int, limit_s: float, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, RenderableColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self._limit_s = limit_s
        self._since: dict[str, float] = {}
        self._bar = Bar(
            RenderableColumn(self),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("", total=total)
        self._console, self._total, self._done = console, total, 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Show that this goes on while the block runs."""
        with self._lock:
            self._since[what] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._since[what]

    def still(self) -> None:
        """Say what goes on, where no bar does."""
        if not self._console.is_terminal:
            self._console.print(f"still {self._busy()}")

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(self._busy())  # not markup: a name may hold brackets

    def _busy(self) -> str:
        with self._lock:
            begun = dict(self._since)
        now = time.monotonic()
        each = (
            f"{what} ({now - since:.0f} s, stopped at {self._limit_s:.0f} s)" if now - since > _LONG_S else what
            for what, since in begun.items()
        )
        return ", ".join(each)

    def done(self, what: str, state: str) -> None:
        """Count one candidate as done, and say what it came to where no bar does."""
        with self._lock:
            self._done += 1
            self._bar.advance(self._task)
            if not self._console.is_terminal:
                self._console.print(f"[{self._done}/{self._total}] {what}: {state}")
