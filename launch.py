"""The one entry point: absl flags to a mode. Nothing else knows flags.

python launch.py --config=configs/bert_pretraining.py:tiny --workdir=runs/demo [--config.KEY=VALUE ...]
python launch.py --config=configs/classification.py:mrpc --workdir=runs/mrpc --seeds=0,1,2 [--config.KEY=VALUE ...]
python launch.py --mode=check --config=configs/bert_pretraining.py:tiny --workdir=runs/demo
python launch.py --mode=evaluate --workdir=runs/demo
python launch.py --mode=predict --workdir=runs/demo --input=FILE --output=FILE.jsonl
python launch.py --mode=predict --workdir=runs/news --input=articles/ --output=summaries.html
python launch.py --mode=predict --config=configs/features.py --config.init_from=FOLDER --input=FILE --output=FOLDER/
python launch.py --mode=report --workdir=runs/demo
python launch.py --mode=export --workdir=runs/demo --output=FOLDER
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from bertjax.errors import UserError, as_user_error, choice
from bertjax.progress import show_lines

# JAX, and the wings that need it, are imported in functions: worker processes import this file too, without use for it.
MODES = ("train", "evaluate", "predict", "export", "prepare", "check", "report")
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
_OUTPUT = flags.DEFINE_string(
    "output", "-", "A file for what the mode gives (- is standard output), or a folder/ to export to or for features."
)
_FORMATS = ("", "text", "jsonl", "html")
_FORMAT = flags.DEFINE_enum("format", "", _FORMATS, "Of predictions; by default the task's, or as the output is named.")
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint",
    "final",
    "What to evaluate, predict with or export: latest, best, a step, the mean of several (last:5, best:3), or final, "
    "what the run's config names as checkpoint.final; to evaluate, also the mean figures of several (each:best:3).",
)
_PLOT = flags.DEFINE_string(
    "plot", "", "With --mode=predict: a picture (.svg, .png) of what the words of each input looked at; needs [report]."
)
_PLOT_LAYERS = flags.DEFINE_multi_integer("plot_layers", None, "A layer to draw, from 0, or from -1 backwards; or all.")
_PLOT_HEADS = flags.DEFINE_multi_integer("plot_heads", None, "A head to draw, from 0; or all.")
_SEEDS = flags.DEFINE_string(
    "seeds", None, "Train once for each of these seeds, 0,1,2 for example, and sum up in seeds.json of the folder."
)
_DISTRIBUTED = flags.DEFINE_string("distributed", "auto", "Whether to join other processes: auto, on or off.")
_COORDINATOR = flags.DEFINE_string("coordinator_address", "", "HOST:PORT of process 0, where no cluster tells it.")
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", 1, "How many processes, with --coordinator_address.")
_PROCESS_ID = flags.DEFINE_integer("process_id", 0, "Which of them this is, with --coordinator_address.")


def main(argv: list[str]) -> None:
    """Runs the mode. What the user can mend is told in one line, and the exit status is 1, as of a failed check."""
    show_lines(("bertjax", "experiments"))
    try:
        if len(argv) > 1:
            raise UserError("arguments", got=" ".join(argv[1:]), expected="flags only", fix="write --name=value")
        went_well = _run(choice(_MODE.value, MODES, "--mode"))
    except Exception as error:
        told = as_user_error(error, _WORKDIR.value if _OUTPUT.value == "-" else _OUTPUT.value)
        if told is None:
            raise
        sys.exit(f"error: {told}")
    if not went_well:
        sys.exit(1)


def _run(mode: str) -> bool:
    if mode == "report" and _SEEDS.value is None:
        from bertjax.reporting import curves

        if not _WORKDIR.value:
            raise UserError("--workdir", got="none", expected="the folder of a run", fix="add --workdir=runs/NAME")
        print(curves.write_report(Path(_WORKDIR.value)))
        return True

    from bertjax import sweeps
    from bertjax.training import distributed, modes

    distributed.initialize(_DISTRIBUTED.value, _COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
    names = _WORKDIR.value, _INPUT.value, _OUTPUT.value, _FORMAT.value, _CHECKPOINT.value
    request = modes.Request(mode, *names, _picture(), _page)
    given = None if _CONFIG.value is None else json.loads(_CONFIG.value.to_json())
    if _SEEDS.value is None:
        outcome = modes.run(request, given, _experiment)
    else:
        overridden = () if given is None else tuple(config_flags.get_override_values(flags.FLAGS["config"]))
        outcome = sweeps.train_seeds(request, given, _experiment, _SEEDS.value, overridden)
    return outcome is not modes.Outcome.FAILED


def _picture() -> Any:
    """What draws attention for a path to which "-2" and so on may be added, or None if there is nothing to draw."""
    if not _PLOT.value:
        return None
    from bertjax.reporting.attention import Attention, draw_attention

    def draw(number: int, kinds: Any) -> None:
        path = Path(_PLOT.value)
        path = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        drawn = {name: Attention(*parts) for name, parts in kinds.items()}
        draw_attention(path, drawn, layers=_PLOT_LAYERS.value, heads=_PLOT_HEADS.value)

    return draw


def _page(records: Any) -> Any:
    """The parts of a page that shows predictions."""
    from bertjax.reporting import summaries

    return summaries.page(records)


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
