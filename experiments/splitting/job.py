"""The steps of `experiments.splits`: ask, search, compare with usual strategies, verify, report and draw."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from compilers import CompilerError, Limits, cancel_children
from experiments import store
from experiments.arguments import INTERRUPTED, UserError
from experiments.console import open_console
from experiments.environment import environment
from experiments.evaluator import Context, reference_outputs
from experiments.splitting import plot, report
from experiments.splitting.request import Options, Request, check
from experiments.splitting.search import Found, Rival, find, rivals
from experiments.splitting.sensitivity import sensitivity
from experiments.splitting.verify import Verified, choose, verify
from graphs import random_inputs
from partition.search import Infeasible, ProblemError, TooWide

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console


def run(options: Options, argv: list[str]) -> int:
    """Do the whole job and return the exit code.

    Raises:
        UserError: the arguments, the model or the output folder cannot be used.
    """
    console = open_console()
    request = check(options)
    backends = dict.fromkeys(place.backend for place in request.places if place.backend)
    about = environment(argv, tuple(backends))
    command = ["python", "-m", "experiments.splits", *argv]
    report.announce(request, console)
    try:
        with store.alone_in(request.folder, _teller(console)):
            store.write_json(request.folder / "environment.json", {**about, "command": command})
            return _steps(request, console)
    except KeyboardInterrupt:
        cancel_children()
        console.print("\ninterrupted; what is compiled and verified is kept, the same command resumes", style="bold")
        return INTERRUPTED
    except (Infeasible, TooWide) as error:
        console.print(str(error) + _way_out(error, request), style="bold")
        return 1
    except ProblemError as error:
        raise UserError(str(error)) from error


def _way_out(error: Infeasible | TooWide, request: Request) -> str:
    if isinstance(error, Infeasible):
        return ""
    where = {"convex": "order", "units": "order"}.get(request.options.where, "layers")
    return f"; ask for less with --space {where}" if where != request.options.where else ""


def _steps(request: Request, console: Console) -> int:
    context = _context_of(request)
    tell = _teller(console)
    found = find(request, context, tell)
    report.print_found(request, found, console)
    others = rivals(request, found)
    report.print_rivals(others, console)
    report.write_found(request, found, others)
    positions = sensitivity(request)
    report.print_sensitivity(positions, console)
    report.write_sensitivity(request, positions)
    verified: list[Verified] = []
    try:
        for one in verify(request, choose(request, found, others), context, tell):
            verified += [one]
    finally:  # an interrupted run shows what it has
        _conclude(request, found, others, verified, console)
        plot.draw_sensitivity(request, positions)
    files = "plans.csv, plans.json, search.json, cuts.csv and the pictures frontier, cuts and sensitivity"
    console.print(f"\nwrote {files} to {request.folder}")
    return 0


def _conclude(
    request: Request, found: Found, others: Sequence[Rival], verified: Sequence[Verified], console: Console
) -> None:
    if verified:
        report.print_verified(verified, request.options.mode, console)
        report.write_verified(request, verified)
    plot.draw_frontier(request, found, others, verified)
    plot.draw_cuts(request, found)


def _context_of(request: Request) -> Callable[[], Context]:
    """Return what makes the context once, when it is first needed: the reference is a whole run of the model."""

    @cache
    def context() -> Context:
        feed = random_inputs(request.graph, request.options.seed)
        try:
            reference = reference_outputs(request.graph, feed, Limits())
        except CompilerError as error:
            raise UserError(
                f"ONNX Runtime cannot run {request.graph.name}, so there is no reference: {error}"
            ) from error
        return Context(
            build=request.options.out / "build",
            limits=Limits(time_s=float(request.options.time_limit)),
            feed=feed,
            reference=reference,
            calibration=request.latencies,
        )

    return context


def _teller(console: Console) -> Callable[[str], None]:
    def tell(text: str) -> None:
        console.print(text, style="dim")

    return tell
