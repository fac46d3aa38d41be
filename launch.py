"""The one entry point: absl flags to a mode. Nothing else knows flags.

python launch.py --config=configs/bert_pretraining.py:tiny --workdir=runs/demo [--config.KEY=VALUE ...]
python launch.py --mode=evaluate --workdir=runs/demo
python launch.py --mode=predict --workdir=runs/demo --input=FILE --output=FILE.jsonl
python launch.py --mode=export --workdir=runs/demo --output=FOLDER
"""

import contextlib
import errno
import importlib
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from bertjax.errors import UserError, build_all, choice

# JAX, and the wings that need it, are imported in functions: the worker processes that prepare text
# import this file again, and have no use for it.

MODES = ("train", "evaluate", "predict", "export", "prepare")
_CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment's config file, with a size behind a colon.")
_MODE = flags.DEFINE_string("mode", "train", "What to do: " + ", ".join(MODES) + ".")
_WORKDIR = flags.DEFINE_string("workdir", "", "The run's folder, shared by all processes.")
_INPUT = flags.DEFINE_string("input", "-", "What to predict on; - is standard input.")
_OUTPUT = flags.DEFINE_string("output", "-", "A file for predictions (- is standard output), or a folder to export to.")
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", "latest", "What to evaluate, predict with or export: latest, best, a step."
)
_DISTRIBUTED = flags.DEFINE_string("distributed", "auto", "Whether to join other processes: auto, on or off.")
_COORDINATOR = flags.DEFINE_string("coordinator_address", "", "HOST:PORT of process 0, where no cluster tells it.")
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", 1, "How many processes, with --coordinator_address.")
_PROCESS_ID = flags.DEFINE_integer("process_id", 0, "Which of them this is, with --coordinator_address.")
# What a machine refuses; any other OSError is a bug.
_REFUSALS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENOENT,
)


def main(argv: list[str]) -> None:
    """Runs the mode. What the user can mend is told in one line, and the exit status is 1."""
    _show_progress()
    try:
        if len(argv) > 1:
            raise UserError("arguments", got=" ".join(argv[1:]), expected="flags only", fix="write --name=value")
        _run(choice(_MODE.value, MODES, "--mode"))
    except UserError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        refused = UserError(
            str(error.filename or _WORKDIR.value or _OUTPUT.value),
            got=error.strerror or str(error),
            expected="a place that can be read and written, with room left",
            fix="free some room or choose another path; what was finished before is kept",
        )
        sys.exit(f"error: {refused}")


def _show_progress() -> None:
    """Our own lines on standard error; other libraries' only from warnings on."""
    absl_logging.set_verbosity(absl_logging.WARNING)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    for name in ("bertjax", "experiments"):
        logging.getLogger(name).setLevel(logging.INFO)
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).propagate = False


def _run(mode: str) -> None:
    from bertjax.training import distributed, inference, loop, run_folder
    from bertjax.training.config import TrainingConfig

    distributed.initialize(_DISTRIBUTED.value, _COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
    config = _read_config(mode)
    module = _experiment(config["experiment"])
    config = module.resolve(config)
    settings, experiment = build_all((TrainingConfig, module.Config), config, "")
    workdir = Path(_WORKDIR.value)

    if mode in ("predict", "export"):
        task = module.make(experiment, workdir if _WORKDIR.value else Path(config["init_from"]), None)
        runner = inference.Inference(task, settings, workdir if _WORKDIR.value else None, _CHECKPOINT.value)
        if mode == "export":
            runner.export(Path(_OUTPUT.value))
            return
        with _open_output() as output:
            for record in runner.records(_input_lines()):
                output.write(json.dumps(record, ensure_ascii=False) + "\n")
        return

    if mode == "train":
        distributed.on_first_process(lambda: run_folder.save_config(workdir, config))
    text = module.preparation(experiment, workdir)
    distributed.agree(text.fingerprint, "the text to prepare")
    distributed.wait_for_first_process(text.run, text.is_finished)
    if mode == "prepare":
        return
    task = module.make(experiment, text.folder, text.folder)
    if mode == "train":
        distributed.on_first_process(lambda: task.save_vocabulary(workdir))
        loop.train(task, settings, workdir)
    else:
        scores = inference.Inference(task, settings, workdir, _CHECKPOINT.value).evaluate()
        print(json.dumps(scores))


def _read_config(mode: str) -> dict[str, Any]:
    """The config of the flags for a run to be, or of the run that the flags name."""
    from bertjax.training import run_folder

    is_new = mode in ("train", "prepare") or not _WORKDIR.value
    if is_new == (_CONFIG.value is None):
        raise UserError(
            "--config",
            got="none" if is_new else "one beside the run's own",
            expected="a file of configs/ to train with, or --workdir of a run, whose config is read from it",
            fix="add --config=configs/bert_pretraining.py:tiny" if is_new else "leave out --config, or --workdir",
        )
    if mode in ("train", "prepare", "evaluate") and not _WORKDIR.value:
        raise UserError("--workdir", got="none", expected="a folder for the run", fix="add --workdir=runs/NAME")
    if is_new:
        return json.loads(_CONFIG.value.to_json())
    return run_folder.load_config(Path(_WORKDIR.value))


def _experiment(name: str) -> Any:
    names = tuple(sorted(path.stem for path in Path(__file__).with_name("experiments").glob("[a-z]*.py")))
    return importlib.import_module(f"experiments.{choice(name, names, 'experiment')}")


def _input_lines() -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        is_stdin = _INPUT.value == "-"
        file = sys.stdin.buffer if is_stdin else stack.enter_context(Path(_INPUT.value).open("rb"))
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                raise UserError(
                    f"input line {number}",
                    got=f"byte {line[error.start]:#04x}",
                    expected="UTF-8",
                    fix="convert the file",
                ) from error


@contextlib.contextmanager
def _open_output() -> Iterator[TextIO]:
    """Standard output, or a file that appears under its name once it is whole."""
    path = Path(_OUTPUT.value)
    if _OUTPUT.value == "-":
        yield sys.stdout
    elif path.exists() and not path.is_file():  # a device or a pipe
        with path.open("w", encoding="utf-8") as file:
            yield file
    else:
        partial = path.with_name(path.name + ".partial")
        with partial.open("w", encoding="utf-8") as file:
            yield file
        partial.rename(path)


def _parse_flags(argv: list[str]) -> list[str]:
    """Parses flags; a key or a value that the config does not take is told in one line."""
    try:
        return flags.FLAGS(argv)
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        text = str(error).strip().strip("'\"").replace("\n", " ")
        wrong = UserError(
            "flags",
            got=text,
            expected="flags of launch.py (--help) and keys of the config file",
            fix="correct it",
        )
        sys.exit(f"error: {wrong}")


if __name__ == "__main__":
    app.run(main, flags_parser=_parse_flags)
