"""`launch.py --sweep`: runs the sweep of a file of `configs/sweeps/` and writes its table."""

import contextlib
import dataclasses
import json
import shlex
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from bertjax import distributed, modes
from bertjax.config import choice
from bertjax.errors import UserError
from bertjax.files import completed
from bertjax.modes import streams
from bertjax.modes.report import write_page
from bertjax.progress import track
from bertjax.settings import jax_config
from bertjax.tools.sweeps import checking, definition, expansion, folder, processes, results, running, tables
from bertjax.tools.sweeps.definition import Sweep
from bertjax.tools.sweeps.expansion import Load, Run
from bertjax.tools.sweeps.seeds import parse_seeds

BACKENDS = ("here", "workers", "slurm", "submitit_local")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a sweep on the command line.

    Attributes:
      spec: the sweep file, with a variant after a colon.
      sets: "STAGE.KEY=VALUE", values for all rows.
      seeds: a list that replaces the seeds of the sweep file, or None.
      backend: "here", one run after another in this process; "workers", child processes; "slurm", cluster jobs;
        "submitit_local", submitit's jobs on this machine.
      workers: the number of runs at a time; not used by "here".
      slurm: "NAME=VALUE", parameters of submitit.
      dry_run: whether to only check and list all runs.
      print_commands: whether to only print the command of each run.
    """

    spec: str
    sets: Sequence[str]
    seeds: str | None
    backend: str
    workers: int
    slurm: Sequence[str]
    dry_run: bool
    print_commands: bool


def run(
    request: modes.Request,
    config: dict[str, Any] | None,
    options: Options,
    load: Load,
    find: Callable[[str], modes.Experiment],
) -> modes.Outcome:
    """Runs a sweep in `request.workdir`: its runs in `runs/`, its table in `table.md`, `.csv`, `.tex` and `.json`.

    The table is also written to the output. Finished runs are skipped and interrupted runs are resumed. After a failed
    run, the other runs continue.

    Args:
      request: the request, in mode train.
      config: the config of --config; an error if it is not None.
      options: the sweep and how to run it.
      load: makes a config from arguments of `launch.py`.
      find: returns the experiment of a name.
    Returns:
      DONE, FAILED if a run failed or the table is incomplete, or STOPPED after SIGTERM or Ctrl-C.
    Raises:
      UserError: for an invalid sweep or config, before the first run starts.
    """
    _check_alone(request, config)
    choice(options.backend, BACKENDS, "--backend")
    if options.workers < 1:
        fix = "start with the number of devices"
        raise UserError("--workers", got=options.workers, expected="at least 1", fix=fix)
    is_here = options.backend == "here" and not (options.dry_run or options.print_commands)
    with jax_config(**({} if is_here else {"jax_platforms": "cpu"})):  # leaves the devices to the runs
        return _run(request, options, load, find)


def _run(
    request: modes.Request, options: Options, load: Load, find: Callable[[str], modes.Experiment]
) -> modes.Outcome:
    workdir = Path(request.workdir)
    sweep = definition.load(options.spec)
    seeds = sweep.seeds if options.seeds is None else parse_seeds(options.seeds)
    recipes = expansion.recipes(sweep, options.sets, load, folder.recorded(workdir))
    folder.check(workdir, recipes)
    first_seed = folder.first_seed(workdir, seeds)
    runs = expansion.runs(sweep, recipes, seeds, first_seed, workdir, folder.names(workdir))
    checking.check(sweep, recipes, request, find)
    if options.dry_run or options.print_commands:
        with streams.open_output(request.output, distributed.is_first_process()) as output:
            output.writelines(_commands(runs, request.program) if options.print_commands else _listed(sweep, runs))
        return modes.Outcome.DONE
    if not request.report:
        runs = tuple(dataclasses.replace(run, arguments=(*run.arguments, "--noreport")) for run in runs)
    start = _backend(options, workdir, request, find)
    # Before the first run, so that the same command resumes an interrupted sweep, and a different sweep is refused.
    distributed.on_first_process(lambda: folder.save(workdir, options.spec, recipes, runs, first_seed))
    try:
        with contextlib.closing(start(runs)) as ending:
            ended = list(track(ending, "sweep", "run", len(runs)))
    except running.StoppedError:
        return modes.Outcome.STOPPED
    return _conclude(request, sweep, runs, seeds, ended)


def _check_alone(request: modes.Request, config: dict[str, Any] | None) -> None:
    for flag, is_given in (("--config", config is not None), (f"--mode={request.mode}", request.mode != "train")):
        if is_given:
            fix = "omit it; set values for all rows with --set=STAGE.KEY=VALUE"
            expected = "only --sweep, whose file determines the runs"
            raise UserError("--sweep", got=f"{flag} in addition", expected=expected, fix=fix)
    if not request.workdir:
        raise UserError("--workdir", got="none", expected="a folder for the sweep", fix="add --workdir=runs/NAME")


def _backend(
    options: Options, workdir: Path, request: modes.Request, find: Callable[[str], modes.Experiment]
) -> Callable[[Sequence[Run]], Generator[running.Ended]]:
    """Returns the function that runs a list of runs with `options.backend`."""
    if options.backend == "here":
        return lambda runs: running.in_this_process(runs, request, find)
    start: processes.Start
    if options.backend == "workers":
        start = processes.Workers(options.workers, request.program, workdir / "logs")
    else:
        cluster = options.backend.removeprefix("submitit_")
        start = processes.Cluster(cluster, _parameters(options.slurm), request.program, workdir / "jobs")
    return lambda runs: processes.in_jobs(runs, start, options.workers)


def _parameters(assignments: Sequence[str]) -> dict[str, Any]:
    """Parses submitit's parameters. Values that are valid JSON, such as numbers, are decoded."""
    parameters = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            fix = "write for example --slurm=slurm_partition=gpu"
            raise UserError(f"--slurm={text}", got="no value", expected="NAME=VALUE", fix=fix)
        try:
            parameters[name] = json.loads(value)
        except ValueError:
            parameters[name] = value
    return parameters


def _commands(runs: Sequence[Run], program: Path) -> Iterator[str]:
    for run in runs:
        yield shlex.join(modes.command(program, run.command)) + "\n"


def _listed(sweep: Sweep, runs: Sequence[Run]) -> Iterator[str]:
    """Yields a line with the state, the folder and the rows of each run."""
    for run in runs:
        state = "finished" if running.is_finished(run) else "begun" if run.folder.exists() else "new"
        rows = ", ".join(dict.fromkeys(key.row for key in run.keys))
        yield f"{state:8}  {run.folder}  ({rows})\n"
    yield f"{len(runs)} runs of {len(sweep.rows)} rows\n"


def _conclude(
    request: modes.Request, sweep: Sweep, runs: Sequence[Run], seeds: Sequence[int], ended: Sequence[running.Ended]
) -> modes.Outcome:
    """Writes the table of the available metrics, and logs failed runs and missing metrics."""
    failed = frozenset(one.run.folder for one in ended if one.error)
    sweep_results = results.collect(sweep, runs, seeds, failed)
    distributed.on_first_process(lambda: _write(request, sweep, sweep_results))
    if request.report:
        write_page(Path(request.workdir))
    went_wrong = running.log_failures(ended)
    running.log_problems(sweep_results.problems)
    return modes.Outcome.FAILED if went_wrong or sweep_results.problems else modes.Outcome.DONE


def _write(request: modes.Request, sweep: Sweep, sweep_results: results.Results) -> None:
    table = tables.make(sweep, sweep_results)
    forms = {"md": tables.as_markdown(table), "tex": tables.as_latex(table)}
    forms["csv"] = tables.as_csv(sweep, sweep_results)
    forms["json"] = tables.as_json(table, list(tables.tradeoffs(sweep, sweep_results)))
    for suffix, text in forms.items():
        with completed(Path(request.workdir) / f"table.{suffix}") as partial:
            partial.write_text(text, encoding="utf-8")
    with streams.open_output(request.output, is_writer=True) as output:
        output.write(tables.as_text(table))
