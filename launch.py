"""The one entry point: absl flags to a mode. Nothing else knows flags.

python launch.py --config=configs/bert_pretraining.py:tiny --workdir=runs/demo [--config.KEY=VALUE ...]
python launch.py --config=configs/classification.py:mrpc --workdir=runs/mrpc --seeds=0,1,2 [--config.KEY=VALUE ...]
python launch.py --sweep=configs/sweeps/bert_masking.py --workdir=runs/masking [--set=STAGE.KEY=VALUE ...] [--dry_run]
python launch.py --mode=plan --config=configs/bert_pretraining.py:large --topology=v5e:16x16 --output=plan.json
python launch.py --mode=evaluate --workdir=runs/demo [--config.data.test_source=FILE] [--config.KEY=VALUE ...]
python launch.py --mode=predict --workdir=runs/demo --input=FILE --output=FILE.jsonl
python launch.py --mode=predict --config=configs/features.py --config.init_from=FOLDER --input=FILE --output=FOLDER/
python launch.py --mode=export --workdir=runs/demo --output=FOLDER
"""

import contextlib
import gc
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from bertjax.config import choice, dotted, unknown_key
from bertjax.errors import UserError, as_user_error, did_you_mean, restored
from bertjax.experiments import find
from bertjax.files import with_packaged
from bertjax.progress import show_lines

# Importing and tracing make many objects that stay: garbage collection as often as by default takes a sixth of both.
gc.set_threshold(50_000, 20, 20)

# Imported in functions: worker processes import this file without using JAX, and no mode imports what only others use.
MODES = ("train", "evaluate", "predict", "export", "prepare", "check", "report", "plan")
_OF_CONFIG = "config", None, "The experiment's config file, with a variant behind a colon; its docstring has them."
# New attributes are told of by `build_all`, which knows the names that are right.
_UNLOCKED = {"lock_config": False, "accept_new_attributes": True}
_CONFIG = config_flags.DEFINE_config_file(*_OF_CONFIG, **_UNLOCKED)
_MODE = flags.DEFINE_string("mode", "train", "What to do: " + ", ".join(MODES) + ".")
_WORKDIR = flags.DEFINE_string("workdir", "", "The run's folder, shared by all processes.")
flags.DEFINE_string("input", "-", "What to predict on; - is standard input.")
_OUTPUT = flags.DEFINE_string("output", "-", "A file (- is standard output), or a folder/ for exports and features.")
_FORMAT = flags.DEFINE_string("format", "", "Of predictions; or by --output's ending.")
flags.DEFINE_string("checkpoint", "final", "latest, best, a step, last:5, best:3, each:best:3; final: the config's.")
_PLOT = flags.DEFINE_string("plot", "", "A picture (.svg, .png): what each word looked at, or a plan; needs [report].")
_PLOT_LAYERS = flags.DEFINE_multi_integer("plot_layers", None, "A layer to draw, from 0, or from -1 backwards; or all.")
_PLOT_HEADS = flags.DEFINE_multi_integer("plot_heads", None, "A head to draw, from 0; or all.")
_SEEDS = flags.DEFINE_string("seeds", None, "Train once for each of these seeds, 0,1,2 for example, and sum up.")
_SWEEP = flags.DEFINE_string("sweep", None, "The file of an ablation in configs/sweeps, with a variant behind a colon.")
_SET = flags.DEFINE_multi_string("set", [], "[ROW/]STAGE.KEY=VALUE of a sweep; row and stage may be patterns: *.")
_BACKEND = flags.DEFINE_string("backend", "here", "What runs a sweep: here, workers, slurm or submitit_local.")
flags.DEFINE_integer("workers", 1, "How many runs of a sweep at a time; --backend=here has one.")
flags.DEFINE_multi_string("slurm", [], "NAME=VALUE for submitit, such as slurm_partition=gpu.")
flags.DEFINE_bool("dry_run", False, "Check a sweep and list its runs, no more.")
flags.DEFINE_bool("print_commands", False, "Check a sweep and print its commands, no more.")
flags.DEFINE_string("topology", "", "With --mode=plan: the slice of TPUs, v5e:16x16 for example.")
flags.DEFINE_bool("plan_search", False, "Plan with the mesh, micro-batches and remat that fit best.")
_REPORT = flags.DEFINE_bool("report", True, "Write report.html at the end of a training or sweep; needs [report].")
flags.DEFINE_string("profile", "", "The first and the last update to trace, into RUN/profile: 100:110.")
_DISTRIBUTED = flags.DEFINE_string("distributed", "auto", "Whether to join other processes: auto, on or off.")
_COORDINATOR = flags.DEFINE_string("coordinator_address", "", "HOST:PORT of process 0, where no cluster tells it.")
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", 1, "How many processes, with --coordinator_address.")
_PROCESS_ID = flags.DEFINE_integer("process_id", 0, "Which of them this is, with --coordinator_address.")
_RUN_CONFIG = flags.DEFINE_multi_string("run_config", [], "What --config.KEY=VALUE stands for without --config.")
_OF_REQUEST = ("workdir", "input", "output", "format", "checkpoint", "topology", "plan_search", "profile")
_OF_SWEEP = ("seeds", "backend", "workers", "slurm", "dry_run", "print_commands")


def main(argv: list[str]) -> None:
    """Runs the mode. What the user can mend is told in one line, and the exit status is 1; see `modes.Outcome`."""
    show_lines(("bertjax",))
    try:
        if len(argv) > 1:
            raise UserError("arguments", got=" ".join(argv[1:]), expected="flags only", fix="write --name=value")
        choice(_FORMAT.value, ("", "text", "jsonl", "html"), "--format")
        sys.exit(_run(choice(_MODE.value, MODES, "--mode")))
    except KeyboardInterrupt:
        sys.exit(130)  # as shells have it
    except Exception as error:
        told = as_user_error(error, _WORKDIR.value if _OUTPUT.value == "-" else _OUTPUT.value)
        if told is None:
            raise
        sys.exit(f"error: {told}")


def _run(mode: str) -> int:
    from bertjax import distributed, modes
    from bertjax.training import compilation, platforms

    platforms.leave_out_tpu()
    compilation.keep_programs()
    if _SWEEP.value is None or _BACKEND.value == "here":  # or the processes that the sweep starts will join
        distributed.initialize(_DISTRIBUTED.value, _COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
    given = None if _CONFIG.value is None else json.loads(_CONFIG.value.to_json())
    defaults = given and _load([f"--config={config_flags.get_config_filename(flags.FLAGS['config'])}"])
    report = _write_report if _REPORT.value or mode == "report" else None
    draw = _drawer(mode, Path(_PLOT.value)) if _PLOT.value else None
    pages: dict[str, Any] = {"report": report, "render": _summary_page, "draw": draw}
    program = Path(sys.argv[0])
    started = {"command": modes.command(program, sys.argv[1:]), "defaults": defaults}
    of_request, of_sweep = ({name: flags.FLAGS[name].value for name in names} for names in (_OF_REQUEST, _OF_SWEEP))
    overrides = dict(each.partition("=")[::2] for each in _RUN_CONFIG.value)
    if given is not None:
        overrides = config_flags.get_override_values(flags.FLAGS["config"])
    request = modes.Request(**of_request, mode=mode, program=program, overrides=overrides, started=started, **pages)
    if _SWEEP.value is None and _SEEDS.value is None:
        return modes.run(request, given, find).value
    from bertjax import sweeps

    if _SWEEP.value is not None:
        options = sweeps.Options(**of_sweep, spec=_SWEEP.value, sets=_SET.value)
        return sweeps.run(request, given, options, _load, find).value
    return sweeps.train_seeds(request, given, find, _SEEDS.value, tuple(request.overrides)).value


def _drawer(mode: str, path: Path) -> Callable[..., None]:
    """Returns the function that draws a plan or attention to `path`."""
    from bertjax.reporting import attention, plan

    if mode == "plan":
        return plan.drawer(path)
    return attention.drawer(path, layers=_PLOT_LAYERS.value, heads=_PLOT_HEADS.value)


def _write_report(folder: Path) -> Path:
    from bertjax.reporting import page

    return page.write(folder)


def _summary_page(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    from bertjax.reporting import summaries

    return summaries.page(records)


def _configs() -> list[str]:
    """Returns the names of the config files."""
    paths = sorted(Path(__file__).with_name("configs").glob("*.py"))
    return [path.stem for path in paths if "\ndef get_config(" in path.read_text()]


def _load(arguments: Sequence[str]) -> dict[str, Any]:
    """The config that arguments of the command line make."""
    own, argv = flags.FlagValues(), _with_packaged_config(["", *arguments])
    config = config_flags.DEFINE_config_file(*_OF_CONFIG, **_UNLOCKED, flag_values=own, sys_argv=argv)
    with _flag_errors(argv):
        own(argv)
        return dict(json.loads(config.value.to_json()))


def _parse_flags(argv: list[str]) -> list[str]:
    """Parses flags and returns the other arguments. A wrong flag ends the process with one line."""
    if not any(re.match(r"--?config(=|$)", argument) for argument in argv):
        argv = [re.sub(r"^--?config\.(?=[^=]+=)", "--run_config=", argument) for argument in argv]
    try:
        argv = _with_packaged_config(argv)
        with _flag_errors(argv):
            rest = flags.FLAGS(argv)
            if _CONFIG.value is not None:
                _CONFIG.value.to_dict()  # raises if the file does not exist
    except UserError as error:
        sys.exit(f"error: {error}")
    return rest


def _with_packaged_config(argv: list[str]) -> list[str]:
    """Returns the arguments, with the package's copy of a config file where the working directory has none."""
    file = re.compile(r"(?<=\0)(--?config[=\0])([^:\0]+)")
    return file.sub(lambda found: found[1] + with_packaged(found[2]), "\0".join(argv)).split("\0")


@contextlib.contextmanager
def _flag_errors(argv: Sequence[str]) -> Iterator[None]:
    """Raises UserError for every error that flags and config files raise."""
    try:
        yield
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        raise _flag_error(error, argv) from error


def _flag_error(error: Exception, argv: Sequence[str]) -> UserError:
    """Returns the UserError for an exception that flags or config files raise."""
    cause: BaseException | None = error
    while cause and not isinstance(cause, UserError):  # ml_collections raises its own errors for those of get_config
        cause = cause.__context__
    if cause:
        return restored(f"--config: {cause}")
    if isinstance(error, flags.UnrecognizedFlagError):
        fix = did_you_mean(error.flagname, flags.FLAGS, "see --help", form="--{}")
        return UserError(f"--{error.flagname}", got="an unknown flag", expected="a flag listed by --help", fix=fix)
    if isinstance(error, OSError):
        got = str(error).rpartition("] ")[2]
        name = Path(got.partition(": ")[2].strip("'")).stem
        fix = did_you_mean(name, _configs(), "correct the path", form="configs/{}.py")
        return UserError("--config", got=got, expected="a config file, such as configs/classification.py", fix=fix)
    if isinstance(error, KeyError | TypeError) and (unknown := _unknown_subtree(argv)):
        return unknown
    message = str(error.args[0] if isinstance(error, KeyError) else error).strip().splitlines()[-1]
    illegal = re.fullmatch(r"flag (--[^=]+=.*?): (.*)", message)
    what, got = illegal.groups() if illegal else ("flags", message)
    where = "docs/reference/keys.md" if what.startswith("--config.") else "--help"
    return UserError(what, got=got, expected=f"a value as documented in {where}", fix="correct the value")


def _unknown_subtree(argv: Sequence[str]) -> UserError | None:
    """Returns the error for the first --config.SUBTREE.KEY whose subtree is not in the config file."""
    keys = re.findall(r"^--?(?:no)?config\.([^=\s]+\.[^=\s]+)", "\n".join(argv), re.MULTILINE)
    known = list(dotted(_load([argument for argument in argv if re.match(r"--?config=", argument)]))) if keys else []
    subtrees = {name.rpartition(".")[0] for name in known}
    return next((unknown_key(key, known) for key in keys if key.rpartition(".")[0] not in subtrees), None)


def run() -> None:
    """Runs the command line; the console command `bertjax` calls it."""
    if Path(sys.argv[0]).suffix != ".py":
        _describe_command()
    app.run(main, flags_parser=_parse_flags)


def _describe_command() -> None:
    """Makes --help of the console command print the docstring and the flags of this file."""
    sys.modules["__main__"].__doc__ = str(__doc__).replace("python launch.py", "bertjax")
    for flag in flags.FLAGS.get_flags_for_module(__name__):
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)


if __name__ == "__main__":
    run()
