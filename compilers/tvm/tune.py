"""MetaSchedule: a search over random schedules, for functions that the sweep leaves slow, when the user asks for it.

Imports TVM; only reached through the methods of `TvmCompiler`.

Every candidate is built and timed in this process, which is a child of ours with a time limit of its own: TVM's
builder starts interpreters that import all tensor intrinsics, 15 s of CPU each, and its runner pickles. The records
of a function are a JSON database in a folder named like its structure, so they are found again by any model that has
the function; asking for more trials later adds to them.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import logging
import shutil
import sys
import tempfile
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from compilers.tvm.blocks import private_like
from compilers.tvm.library import NO_ASSERTS
from compilers.tvm.nans import PIPELINE
from compilers.tvm.packing import DOT
from compilers.tvm.sweep import RELEVANT_SHARE, arguments_of, structure_key, timed_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compilers.tvm.cache import Decision, TileCache
    from compilers.tvm.sweep import Sweep

_INTRINSICS: Final = "tvm.s_tir.tensor_intrin"
_NAME: Final = "main"
_FILES: Final = ("database_workload.json", "database_tuning_record.json")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Tuner:
    """Tries `trials` schedules of each function that is worth it; the tiles that the sweep tried are the first of them.

    `cache` has the decisions; the records lie beside the sweep's tiles.
    """

    sweep: Sweep
    trials: int
    cache: TileCache
    _found: dict[str, Any] = dataclasses.field(default_factory=dict)

    def improve(
        self, functions: Mapping[str, Any], decisions: Mapping[str, Decision], calls: Mapping[str, int]
    ) -> dict[str, Decision]:
        """Return the decisions with those of tuned functions, where tuning found something clearly faster.

        Worth tuning is what no schedule of the sweep fits, and what takes a relevant share of the model's time.
        """
        worth = {name for name in functions if _tunable(functions[name], decisions[name])}
        total_s = sum((decisions[name].time_s or 0.0) * calls.get(name, 1) for name in functions)
        for name in sorted(worth):
            spent_s = (decisions[name].time_s or 0.0) * calls.get(name, 1)
            if decisions[name].build != "plain" and spent_s < RELEVANT_SHARE * total_s:
                worth.remove(name)
        return {name: self._decide(functions[name], d) if name in worth else d for name, d in decisions.items()}

    def _decide(self, func: Any, decided: Decision) -> Decision:  # noqa: ANN401
        key = structure_key(func)
        known = self.cache.get(key)
        if known is not None and (known.build != "tuned" or self.best(func, 0) is not None):
            return known
        trials = self.trials - (self.sweep.candidates if decided.build == "tiled" else 0)
        best = self.best(func, trials) if trials > 0 else None
        decision = decided if best is None else self.sweep.faster(func, decided, best)
        self.cache.put(key, decision)
        return decision

    def tuned(self, functions: Mapping[str, Any], decisions: Mapping[str, Decision]) -> dict[str, Any]:
        """Return the functions that are built as MetaSchedule found best."""
        names = [name for name, decision in decisions.items() if decision.build == "tuned"]
        return {name: self.best(functions[name], 0) for name in names}

    def best(self, func: Any, trials: int) -> Any | None:  # noqa: ANN401
        """Return the function with the best schedule on record, of at least `trials`; None when there is none."""
        key = structure_key(func)
        if self._found.get(key) is None:
            module = tvm.IRModule({_NAME: func.with_attr("global_symbol", _NAME)})
            _import_intrinsics()
            try:
                found = self._records(key, module, trials).query_ir_module(module, self.sweep.target, _NAME)
            except tvm.s_tir.schedule.ScheduleError:  # its loops are not of a form that can be scheduled
                found = None
            self._found[key] = None if found is None else private_like(func, found[_NAME])
        return self._found[key]

    def _records(self, key: str, module: Any, trials: int) -> Any:  # noqa: ANN401
        """Return a database with `trials` records, or as many as the function has different schedules.

        What is missing is found on a copy, whose files then take the place of the old ones: two processes that tune
        the same function leave the records of one, and a reader never sees half a file.
        """
        folder = self.sweep.cache.folder / "metaschedule" / key
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            shutil.copytree(folder, scratch, dirs_exist_ok=True)
            database = ms.database.JSONDatabase(work_dir=scratch)
            if len(database) < trials:
                self._tune(module, database, trials - len(database))
                for name in _FILES:
                    (Path(scratch) / name).replace(folder / name)
        return database

    def _tune(self, module: Any, database: Any, trials: int) -> None:  # noqa: ANN401
        context = ms.TuneContext(
            mod=module,
            target=_with_cores(self.sweep.target, self.sweep.threads),
            space_generator="post-order-apply",
            search_strategy=ms.search_strategy.EvolutionarySearch(
                population_size=64, init_measured_ratio=0.2, init_min_unmeasured=16, genetic_num_iters=2
            ),
            task_name=_NAME,
            rand_state=1,
            num_threads=1,
            logger=_silent_logger(),
        )
        built: dict[str, Any] = {}
        ms.tune.tune_tasks(
            tasks=[context],
            task_weights=[1.0],
            work_dir="",  # read only where the database is one to make
            max_trials_global=trials,
            num_trials_per_iter=trials,
            builder=_Builder(built),
            runner=_Runner(built, module[_NAME]),
            database=database,
            # Its other models need packages of hundreds of megabytes, and find as good a schedule in so few trials.
            cost_model=ms.cost_model.RandomModel(seed=1),
            measure_callbacks=[ms.measure_callback.AddToDatabase()],
        )


@derived_object
class _Builder(ms.builder.PyBuilder):  # type: ignore[misc]
    """Build in this process; the path of an artefact is a number in `built`."""

    def __init__(self, built: dict[str, Any]) -> None:
        super().__init__()
        self._built = built

    def build(self, inputs: Sequence[Any]) -> list[Any]:
        """Build each candidate; one that does not build carries its reason."""
        return [self._one(entry) for entry in inputs]

    def _one(self, entry: Any) -> Any:  # noqa: ANN401
        name = str(len(self._built))
        try:
            with tvm.transform.PassContext(config=NO_ASSERTS):
                module = tvm.s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(entry.mod)
                self._built[name] = tvm.tirx.build(module, target=entry.target, pipeline=PIPELINE)[_NAME]
        except Exception as error:  # noqa: BLE001 - TVM's passes raise what they like; the search goes on
            return ms.builder.BuilderResult(None, repr(error)[:500])
        return ms.builder.BuilderResult(name, None)


@derived_object
class _Runner(ms.runner.PyRunner):  # type: ignore[misc]
    """Time in this process, like the sweep."""

    def __init__(self, built: dict[str, Any], func: Any) -> None:  # noqa: ANN401
        super().__init__()
        self._built = built
        self._arguments = arguments_of(func)

    def run(self, runner_inputs: Sequence[Any]) -> list[Any]:
        """Run each candidate and forget it."""
        times = [self._time_s(self._built.pop(entry.artifact_path)) for entry in runner_inputs]
        results = [ms.runner.RunnerResult([time_s], None) for time_s in times]
        return [_done(result) for result in results]

    def _time_s(self, kernel: Any) -> float:  # noqa: ANN401
        call = functools.partial(kernel, *self._arguments)
        call()
        return timed_s([call])[0]


def _tunable(func: Any, decision: Decision) -> bool:  # noqa: ANN401
    """Tell whether MetaSchedule can do anything for a function.

    Not when its shape is known at run time only, when this CPU's code for it is wrong, or when it is laid out for dot
    products: MetaSchedule vectorises around that instruction, and nothing of what it proposes builds.
    """
    return decision.time_s is not None and decision.build != "safe" and DOT not in func.script()


def _done(result: Any) -> Any:  # noqa: ANN401
    return ms.runner.RunnerFuture(f_done=lambda: True, f_result=lambda: result)


def _import_intrinsics() -> None:
    """Register the intrinsics that tuning for a CPU asks for, and no others.

    The package's own import parses those of all GPUs: 15 s of CPU.
    """
    if _INTRINSICS in sys.modules:
        return
    package = types.ModuleType(_INTRINSICS)
    package.__path__ = [str(Path(tvm.s_tir.__file__).parent / "tensor_intrin")]
    sys.modules[_INTRINSICS] = package
    for name in ("x86", "arm_cpu"):
        importlib.import_module(f"{_INTRINSICS}.{name}")


def _with_cores(target: Any, cores: int) -> Any:  # noqa: ANN401
    """Return the target with the number of cores that MetaSchedule divides the work by."""
    return tvm.target.Target({**target.export(), "num-cores": cores})


def _silent_logger() -> logging.Logger:
    logger = logging.getLogger("edgefrontier.tvm.tune")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    return logger
