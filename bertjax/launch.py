"""The command line of bertjax: trains, evaluates, predicts, exports and plans.

  python launch.py --config=configs/bert_pretraining.py:tiny --workdir=runs/demo [--config.KEY=VALUE ...]
  python launch.py --config=configs/classification.py:mrpc --workdir=runs/mrpc --seeds=0,1,2
  python launch.py --mode=evaluate --workdir=runs/demo [--config.data.test_source=FILE]
  python launch.py --mode=predict --workdir=runs/demo --input=FILE --output=FILE.jsonl
  python launch.py --mode=predict --config=configs/features.py --config.init_from=FOLDER --input=FILE --output=FOLDER/
  python launch.py --mode=mine --config=configs/retrieval.py --config.init_from=FOLDER --config.data.source=FILE
  python launch.py --mode=export --workdir=runs/demo --output=FOLDER
  python launch.py --mode=plan --config=configs/bert_pretraining.py:large --topology=v5e:16x16
  python launch.py --keys=optimizer [--config=configs/tagging.py]
  python launch.py --sweep=configs/sweeps/bert_masking.py --workdir=runs/masking [--set=STAGE.KEY=VALUE ...] [--dry_run]

--keys lists the config keys with defaults and meanings. docs/reference/inputs.md has the formats of inputs.
"""

import contextlib
import gc
import importlib.metadata
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from absl import app, flags
from ml_collections import config_flags

from bertjax.config import choice, dotted, unknown_key
from bertjax.errors import UserError, as_user_error, did_you_mean, of_code, restored
from bertjax.experiments import find, load, registered
from bertjax.files import standard_output, with_packaged
from bertjax.progress import lines_shown

_BEGAN = time.perf_counter()  # before the imports that take seconds

# Importing and tracing make many objects that stay: garbage collection as often as by default takes a sixth of both.
gc.set_threshold(50_000, 20, 20)

# Imports are in functions: worker processes import this file without JAX, and a mode imports only what it needs.
MODES = ("train", "evaluate", "predict", "mine", "export", "prepare", "check", "report", "plan")
FORMATS = ("", "text", "jsonl", "csv", "tsv", "html")
_OF_CONFIG = "config", None, "Config file or its name, with a variant after a colon."
# `build_all` reports unknown keys, because it knows the valid ones.
_UNLOCKED = {"lock_config": False, "accept_new_attributes": True}
_CONFIG = config_flags.DEFINE_config_file(*_OF_CONFIG, **_UNLOCKED)
_RUN_CONFIG = flags.DEFINE_multi_string(
    "run_config", [], "Internal: replaces --config.KEY=VALUE if no --config is set."
)
_MODE = flags.DEFINE_string("mode", "train", f"What to do: {', '.join(MODES)}. Default: train.")
_WORKDIR = flags.DEFINE_string("workdir", "", "Folder of the run or the sweep.")
flags.DEFINE_bool("report", True, "Write report.html after training or a sweep. Default: true.")
flags.DEFINE_string("profile", "", "First and last update to trace into RUN/profile, such as 100:110.")
_SEEDS = flags.DEFINE_string("seeds", None, "Train one run per seed, such as 0,1,2, and summarize their metrics.")
flags.DEFINE_string("input", "-", "File or folder to predict on. Default: standard input.")
_OUTPUT = flags.DEFINE_string(
    "output", "-", "Output file, or FOLDER/ for exports and features. Default: standard output."
)
_FORMAT = flags.DEFINE_string(
    "format", "", "Format of predictions: text, jsonl, csv, tsv or html. Default: that of --output."
)
flags.DEFINE_string("columns", "", "Columns of the input table to copy into each prediction, such as id,date.")
_CHECKPOINTS = (
    "Checkpoint: latest, best, a step, or a mean such as last:5 or best:3. each:best:3 evaluates each of them."
)
flags.DEFINE_string("checkpoint", "final", f"{_CHECKPOINTS} Default: final, which is the config key checkpoint.final.")
flags.DEFINE_multi_string("card", [], "NAME=VALUE: language, license, base_model or datasets of a model card.")
flags.DEFINE_string("plot", "", "Draw the attention of predictions, or a plan, to a file: .svg or .png.")
flags.DEFINE_multi_integer("plot_layers", None, "Layer to draw, from 0; negative from the last. Repeatable.")
flags.DEFINE_multi_integer("plot_heads", None, "Head to draw, from 0. Repeatable.")
_SWEEP = flags.DEFINE_string("sweep", None, "Sweep file or its name, with a variant after a colon.")
_SET = flags.DEFINE_multi_string("set", [], "[ROW/]STAGE.KEY=VALUE: a config value. ROW and STAGE can be patterns (*).")
_BACKEND = flags.DEFINE_string(
    "backend", "here", "Where runs start: here, workers, slurm or submitit_local. Default: here."
)
flags.DEFINE_integer("workers", 1, "Number of simultaneous runs, except with --backend=here. Default: 1.")
flags.DEFINE_multi_string("slurm", [], "NAME=VALUE: an option of submitit, such as slurm_partition=gpu. Repeatable.")
flags.DEFINE_bool("dry_run", False, "Check the sweep and list its runs.")
flags.DEFINE_bool("print_commands", False, "Check the sweep and print the command of each run.")
flags.DEFINE_string("topology", "", "TPUs or GPUs to plan for, such as v5e:16x16, h100:8 or h100:4x8.")
flags.DEFINE_bool("plan_search", False, "Search the mesh, micro-batches and rematerialization that fit best.")
_DISTRIBUTED = flags.DEFINE_string("distributed", "auto", "Join other processes: auto, on or off. Default: auto.")
_COORDINATOR = flags.DEFINE_string("coordinator_address", "", "HOST:PORT of process 0, outside of known clusters.")
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", 1, "Number of processes, with --coordinator_address.")
_JOIN_TIMEOUT = flags.DEFINE_integer("join_timeout", 300, "Seconds to wait for all processes to join. Default: 300.")
_PROCESS_ID = flags.DEFINE_integer("process_id", 0, "Number of this process, with --coordinator_address.")
_KEYS = flags.DEFINE_string("keys", None, "List the config keys, those of --config if set. --keys=data.* selects some.")
_VERSION = flags.DEFINE_bool("version", False, "Print the version.")
_KEY = "config.KEY=VALUE"
GROUPS = {
    "Run": ("config", _KEY, "workdir", "mode", "seeds", "report", "profile"),
    "Predict, evaluate and export": (
        *("input", "output", "format", "columns", "checkpoint", "card"),
        *("plot", "plot_layers", "plot_heads"),
    ),
    "Sweeps": ("sweep", "set", "backend", "workers", "slurm", "dry_run", "print_commands"),
    "Plan": ("topology", "plan_search"),
    "Several processes": ("distributed", "coordinator_address", "num_processes", "process_id", "join_timeout"),
    "Help": ("help", "helpfull", "keys", "version"),
}
_OF_REQUEST = (
    *("workdir", "input", "output", "format", "columns", "checkpoint", "card"),
    *("plot", "plot_layers", "plot_heads", "topology", "plan_search", "report", "profile"),
)
# Of config and sweep files: their folder, the function that they define, and the entry points of installed packages.
_CONFIGS = "configs", "get_config", "bertjax.configs"
_SWEEPS = "configs/sweeps", "get_sweep", "bertjax.sweeps"
_OF_SWEEP = ("seeds", "backend", "workers", "slurm", "dry_run", "print_commands")


@lines_shown()
def main(argv: list[str]) -> None:
    """Runs the mode. User errors print one line and exit with status 1; see `modes.Outcome` for the others."""
    try:
        if len(argv) > 1:
            raise UserError("arguments", got=" ".join(argv[1:]), expected="flags only", fix="write --name=value")
        choice(_FORMAT.value, FORMATS, "--format")
        sys.exit(_run(choice(_MODE.value, MODES, "--mode")))
    except Exception as error:
        user_error = as_user_error(error, _WORKDIR.value if _OUTPUT.value == "-" else _OUTPUT.value)
        if user_error is None:
            raise
        sys.exit(f"error: {user_error}")


def _run(mode: str) -> int:
    from bertjax import distributed, modes
    from bertjax.training import compilation, platforms

    platforms.leave_out_tpu()
    compilation.keep_programs()
    if _SWEEP.value is None or _BACKEND.value == "here":  # otherwise the sweep's processes join
        address = _COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value
        distributed.initialize(_DISTRIBUTED.value, *address, _JOIN_TIMEOUT.value)
        if mode not in ("prepare", "plan", "report"):
            platforms.check_devices()
    new_config = None if _CONFIG.value is None else json.loads(_CONFIG.value.to_json())
    defaults = new_config and _load([f"--config={config_flags.get_config_filename(flags.FLAGS['config'])}"])
    program = Path(sys.argv[0])
    started = {"command": modes.command(program, sys.argv[1:]), "defaults": defaults}
    of_request, of_sweep = ({name: flags.FLAGS[name].value for name in names} for names in (_OF_REQUEST, _OF_SWEEP))
    overrides = dict(assignment.partition("=")[::2] for assignment in _RUN_CONFIG.value)
    if new_config is not None:
        overrides = config_flags.get_override_values(flags.FLAGS["config"])
    request = modes.Request(
        **of_request, mode=mode, program=program, overrides=overrides, started=started, began=_BEGAN
    )
    if _SWEEP.value is None and _SEEDS.value is None:
        return modes.run(request, new_config, find).value
    from bertjax.tools import sweeps

    if _SWEEP.value is not None:
        file, colon, variant = _SWEEP.value.partition(":")
        options = sweeps.Options(**of_sweep, spec=_path_of(file, *_SWEEPS) + colon + variant, sets=_SET.value)
        return sweeps.run(request, new_config, options, _load, find).value
    return sweeps.train_seeds(request, new_config, find, _SEEDS.value, tuple(request.overrides)).value


def _help() -> str:
    """Returns the text of --help."""
    from bertjax import usage

    sizes = tuple(importlib.import_module("bertjax.configs.sizes").SIZES)
    # absl appends to the help of a repeatable flag that it is one.
    helps = {name: str(flags.FLAGS[name].help).partition(";\n")[0] for name in flags.FLAGS}
    helps[_KEY] = "Config value. With --workdir of a trained run and no --config: a key that may differ after training."
    helps |= {"help": "Print this help.", "helpfull": "Print all flags, those of libraries included."}
    groups = {title: {name: helps[name] for name in names} for title, names in GROUPS.items()}
    experiments = []
    for name in _files(*_CONFIGS):
        module = importlib.import_module(f"bertjax.configs.{name}")
        experiments.append(usage.Experiment(name, str(module.__doc__).partition("\n")[0], module.VARIANTS))
    is_installed = Path(sys.argv[0]).suffix != ".py"
    commands = str(__doc__).replace("python launch.py", "bertjax") if is_installed else str(__doc__)
    return usage.text(commands, experiments, sizes, _files(*_SWEEPS), groups)


def _files(folder: str, function: str, group: str) -> list[str]:
    """Returns the names of the files in a folder beside this file that define a function."""
    paths = sorted(Path(__file__).parent.glob(f"{folder}/*.py"))
    return [path.stem for path in paths if f"\ndef {function}(" in path.read_text()]


def _load(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the config of command-line arguments."""
    flag_values = flags.FlagValues()
    argv = _with_packaged_config(["", *arguments])
    config = config_flags.DEFINE_config_file(*_OF_CONFIG, **_UNLOCKED, flag_values=flag_values, sys_argv=argv)
    _add_evaluations(flag_values["config"], argv)
    with _flag_errors(argv):
        flag_values(argv)
        return dict(json.loads(config.value.to_json()))


def _parse_flags(argv: list[str]) -> list[str]:
    """Parses flags and returns the other arguments. Prints information, or a user error in one line, and exits."""
    if {"--help", "-help", "-h"} & set(argv):
        _print(_help())
    argv = [re.sub(r"^--?keys$", "--keys=", argument) for argument in argv]
    if not any(re.match(r"--?config(=|$)", argument) for argument in argv):
        argv = [re.sub(r"^--?config\.(?=[^=]+=)", "--run_config=", argument) for argument in argv]
    try:
        argv = _with_packaged_config(argv)
        _add_evaluations(flags.FLAGS["config"], argv)
        with _flag_errors(argv):
            rest = flags.FLAGS(argv)
            if _CONFIG.value is not None:
                _CONFIG.value.to_dict()  # raises if the file does not exist
        if _VERSION.value:
            _print(_version())
        if _KEYS.value is not None:
            _print(_keys(_KEYS.value))
    except UserError as error:
        sys.exit(f"error: {error}")
    return rest


class _ConfigParser(flags.ArgumentParser):
    """Parses a config file, and adds the keys of the evaluations in `--config.evaluations` for other arguments."""

    def __init__(self, parser: Any, argv: Sequence[str]) -> None:
        self.of_file = parser
        self._names = re.findall(r"\0--?config\.evaluations[=\0]([^\0]*)", "\0".join(argv))[-1:]

    def parse(self, argument: str) -> Any:
        config = self._config(argument)
        for name in self._names:
            from bertjax import evaluations

            added = evaluations.with_keys({"evaluations": name})
            config.update({key: values for key, values in added.items() if key not in config})
        return config

    def _config(self, argument: str) -> Any:
        """Returns the config of a file. Raises UserError for an exception of its code, except a missing file."""
        try:
            config = self.of_file.parse(argument)
            if not hasattr(config, "to_dict"):
                raise TypeError(f"get_config returns {type(config).__name__}, not a ConfigDict")
            return config
        except Exception as error:  # the file's code can raise any exception
            if isinstance(error, OSError) or _user_error(error):
                raise
            got = of_code(error, argument.partition(":")[0])
            expected = "a Python file such as configs/classification.py, and one of its variants"
            raise UserError(
                argument, got=got, expected=expected, fix="correct the path, the variant or the file"
            ) from None


def _add_evaluations(flag: Any, argv: Sequence[str]) -> None:
    """Makes the flag of a config file add the keys of evaluations."""
    flag.parser = _ConfigParser(getattr(flag.parser, "of_file", flag.parser), argv)


def _print(information: str) -> NoReturn:
    with standard_output() as file:
        print(information, file=file)
    sys.exit(0)


def _version() -> str:
    try:
        return f"bertjax {importlib.metadata.version('bertjax')}"
    except importlib.metadata.PackageNotFoundError:
        return "bertjax, a clone that is not installed"


def _keys(pattern: str) -> str:
    """Returns the text of --keys."""
    from bertjax import keys

    if _CONFIG.value is not None:
        return keys.text({"": keys.of_config(_CONFIG.value.to_dict())}, pattern)
    return keys.text({name: keys.of_file(name) for name in _files(*_CONFIGS)}, pattern)


def _with_packaged_config(argv: list[str]) -> list[str]:
    """Returns the arguments, with the path of a config file that is named as in this package or by an entry point."""
    file = re.compile(r"(?<=\0)(--?config[=\0])([^:\0]+)")
    return file.sub(lambda match: match[1] + _path_of(match[2], *_CONFIGS), "\0".join(argv)).split("\0")


def _path_of(written: str, folder: str, function: str, group: str) -> str:
    """Returns the path of a config or sweep file, which may be named as in its folder or by an installed package."""
    if not re.fullmatch(r"[\w-]+", written) or Path(written).exists():
        return with_packaged(written)
    if written in _files(folder, function, group):
        return with_packaged(f"{folder}/{written}.py")
    entry = registered(group).get(written)
    return str(load(entry).__file__) if entry else written


@contextlib.contextmanager
def _flag_errors(argv: Sequence[str]) -> Iterator[None]:
    """Raises UserError for every error that flags and config files raise."""
    try:
        yield
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        raise _flag_error(error, argv) from error


def _flag_error(error: Exception, argv: Sequence[str]) -> UserError:
    """Returns the UserError for an exception that flags or config files raise."""
    if cause := _user_error(error):
        return restored(f"--config: {cause}")
    if isinstance(error, flags.UnrecognizedFlagError):
        _, dot, key = error.flagname.partition(".")
        fix = did_you_mean(error.flagname, [f"config.{key}"] if dot else flags.FLAGS, "see --help", form="--{}")
        return UserError(f"--{error.flagname}", got="an unknown flag", expected="a flag listed by --help", fix=fix)
    if isinstance(error, OSError):
        got = str(error).rpartition("] ")[2]
        name = Path(got.partition(": ")[2].strip("'")).stem
        fix = "correct the path"
        if name in registered("bertjax.experiments"):
            fix = "register its config file in the entry-point group bertjax.configs"
        fix = did_you_mean(name, registered("bertjax.configs"), fix)
        fix = did_you_mean(name, _files(*_CONFIGS), fix, form="configs/{}.py")
        return UserError("--config", got=got, expected="a config file, such as configs/classification.py", fix=fix)
    if isinstance(error, KeyError | TypeError) and (unknown := _unknown_subtree(argv)):
        return unknown
    message = str(error.args[0] if isinstance(error, KeyError) else error).strip().splitlines()[-1]
    illegal = re.fullmatch(r"flag (--[^=]+=.*?): (.*)", message)
    what, got = illegal.groups() if illegal else ("flags", message)
    expected = f"a value as {'--keys' if what.startswith('--config.') else '--help'} describes"
    if "Non-boolean argument" in got:
        got = repr(what.partition("=")[2])
        expected = "True or False"
    return UserError(what, got=got, expected=expected, fix="correct the value")


def _user_error(error: BaseException | None) -> BaseException | None:
    """Returns the UserError that led to an exception: ml_collections raises its own errors for those of get_config."""
    while error and not isinstance(error, UserError):
        error = error.__context__
    return error


def _unknown_subtree(argv: Sequence[str]) -> UserError | None:
    """Returns the error for the first --config.SUBTREE.KEY whose subtree is not in the config file."""
    keys = re.findall(r"^--?(?:no)?config\.([^=\s]+\.[^=\s]+)", "\n".join(argv), re.MULTILINE)
    config_keys = (
        list(dotted(_load([argument for argument in argv if re.match(r"--?config(\.evaluations)?=", argument)])))
        if keys
        else []
    )
    subtrees = {name.rpartition(".")[0] for name in config_keys}
    return next((unknown_key(key, config_keys) for key in keys if key.rpartition(".")[0] not in subtrees), None)


def run() -> None:
    """Runs the command line; `launch.py` and the console command `bertjax` call it."""
    sys.modules["__main__"].__doc__ = __doc__  # absl prints it for --helpfull
    try:
        app.run(main, flags_parser=_parse_flags)
    except KeyboardInterrupt:  # also while a config file imports JAX
        print("interrupted", file=sys.stderr)
        sys.exit(130)  # the convention of shells


if __name__ == "__main__":
    run()
