"""The one entry point: absl flags to a mode. Nothing else knows flags.

python launch.py --config=configs/bert_pretraining.py:tiny --workdir=runs/demo [--config.KEY=VALUE ...]
python launch.py --mode=evaluate --workdir=runs/demo
python launch.py --mode=predict --workdir=runs/demo --input=FILE --output=FILE.jsonl
python launch.py --mode=export --workdir=runs/demo --output=FOLDER
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from bertjax.errors import UserError, as_user_error, build_all, choice
from bertjax.progress import show_lines

# JAX, and the wings that need it, are imported in functions: worker processes import this file too, without use for it.
MODES = ("train", "evaluate", "predict", "export", "prepare")
_CONFIG = config_flags.DEFINE_config_file(
    "config",
    None,
    "The experiment's config file, with a size behind a colon.",
    lock_config=False,
    accept_new_attributes=True,  # to be told by `build_all`, which knows the names that are right
)
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


def main(argv: list[str]) -> None:
    """Runs the mode. What the user can mend is told in one line, and the exit status is 1."""
    show_lines(("bertjax", "experiments"))
    try:
        if len(argv) > 1:
            raise UserError("arguments", got=" ".join(argv[1:]), expected="flags only", fix="write --name=value")
        _run(choice(_MODE.value, MODES, "--mode"))
    except Exception as error:
        told = as_user_error(error, _WORKDIR.value if _OUTPUT.value == "-" else _OUTPUT.value)
        if told is None:
            raise
        sys.exit(f"error: {told}")


def _run(mode: str) -> None:
    from bertjax.training import distributed, inference, loop, run_folder, streams
    from bertjax.training.config import TrainingConfig

    distributed.initialize(_DISTRIBUTED.value, _COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
    config = _read_config(mode)
    module = _experiment(config.get("experiment", ""))
    build_all((TrainingConfig, module.Config), config, "")  # no key is missing where `resolve` looks
    if _CONFIG.value is not None:  # a run's own config is resolved, and the folder in init_from may be gone
        config = module.resolve(config)
    settings, experiment = build_all((TrainingConfig, module.Config), config, "")
    workdir = Path(_WORKDIR.value)

    if mode in ("predict", "export"):
        from_run = workdir if _WORKDIR.value else None
        task = module.make(experiment, from_run or Path(config["init_from"]), None)
        runner = inference.Inference(task, settings, from_run, _CHECKPOINT.value)
        if mode == "export":
            runner.export(Path(_OUTPUT.value))
            return
        with streams.open_output(_OUTPUT.value, distributed.is_first_process()) as output:
            for record in runner.records(streams.read_lines(_INPUT.value)):
                output.write(json.dumps(record, ensure_ascii=False) + "\n")
        return

    rehearsal = module.make(experiment, None, None)  # tells what does not fit together, before text is prepared
    if mode == "train":
        loop.check(rehearsal, settings)
        distributed.on_first_process(lambda: run_folder.save_config(workdir, config))
    text = module.preparation(experiment, workdir)
    distributed.agree(text.fingerprint, "the text to prepare")
    if mode != "prepare":
        distributed.on_first_process(lambda: run_folder.check_text(workdir, text.fingerprint))
    distributed.on_first_process(text.run)
    if mode == "prepare":
        return
    task = module.make(experiment, text.folder, text.folder)
    if mode == "train":
        distributed.on_first_process(lambda: task.save_vocabulary(workdir))
        loop.train(task, settings, workdir)
    else:
        scores = inference.Inference(task, settings, workdir, _CHECKPOINT.value).evaluate()
        with streams.open_output(_OUTPUT.value, distributed.is_first_process()) as output:
            output.write(json.dumps(scores) + "\n")


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
    if mode == "export" and _OUTPUT.value == "-":
        raise UserError("--output", got="none", expected="a folder to export to", fix="add --output=FOLDER")
    config = json.loads(_CONFIG.value.to_json()) if is_new else run_folder.load_config(Path(_WORKDIR.value))
    if not _WORKDIR.value and not config.get("init_from"):
        fix = "add --workdir=RUN or --config.init_from=FOLDER"
        raise UserError("--workdir", got="none, and no init_from", expected="a run or published weights", fix=fix)
    return config


def _experiment(name: str) -> Any:
    names = tuple(sorted(path.stem for path in Path(__file__).with_name("experiments").glob("[a-z]*.py")))
    return importlib.import_module(f"experiments.{choice(name, names, 'experiment')}")


def _parse_flags(argv: list[str]) -> list[str]:
    """Parses flags; what they do not take is told in one line."""
    try:
        rest = flags.FLAGS(argv)
        if _CONFIG.value is not None:
            _CONFIG.value.to_dict()  # raises here if there is no such file
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        lines = str(error).strip().splitlines()  # the last ones of a config file that cannot be read are the cause
        wrong = UserError(
            "flags",
            got=lines[-1].strip().removeprefix("ValueError: "),
            expected="flags of launch.py (--help), with values of the types in the config file",
            fix="correct the name or the value",
        )
        sys.exit(f"error: {wrong}")
    return rest


if __name__ == "__main__":
    app.run(main, flags_parser=_parse_flags)
