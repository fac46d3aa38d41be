"""The modes of `launch.py`, one module each."""

import sys
from collections.abc import Callable
from pathlib import Path

from flax import traverse_util

from bertjax import distributed
from bertjax.contract import ConfigTree, Record
from bertjax.errors import UserError
from bertjax.modes import streams
from bertjax.modes.experiment import Experiment
from bertjax.modes.request import Outcome, Request, command, config_of
from bertjax.modes.stages import Resolved, check_folder, rehearse, resolve
from bertjax.modes.tools import tool

__all__ = ["Experiment", "Outcome", "Request", "check_folder", "command", "config_of", "rehearse", "run"]

_AGREED = ("mode", "workdir", "checkpoint", "input", "output", "columns")  # flags that are the same on all processes


@distributed.ending_together()
def run(request: Request, config: ConfigTree | None, find: Callable[[str], Experiment]) -> Outcome:
    """Runs the mode that a command line requests.

    Args:
      request: the request.
      config: the config of a new run; None to read the config of the run in `workdir`.
      find: the experiment of a name.
    Raises:
      UserError: for all errors that the user can correct.
    """
    flags = {f"--{name}": getattr(request, name) for name in _AGREED}
    values = request.overrides if config is None else traverse_util.flatten_dict(config, sep=".")
    distributed.agree_on_command({**flags, **values})
    if config is None and request.overrides and request.mode not in ("evaluate", "predict", "export"):
        got = f"--mode={request.mode} and no --config"
        expected = "--config, or a mode that uses a trained run"
        fix = "omit it, or add --config"
        raise UserError(f"config key {next(iter(request.overrides))}", got=got, expected=expected, fix=fix)
    if request.mode == "report":
        from bertjax.modes.report import report

        report(Path(request.workdir), request.output, lambda: resolve(request, config, find))
        return Outcome.DONE
    resolved = resolve(request, config, find)
    if request.mode in ("predict", "export"):
        _use(request, resolved)
        return Outcome.DONE
    if request.mode == "mine":
        from bertjax.modes.mine import mine

        mine(resolved, request.output)
        return Outcome.DONE
    return _train_or_score(request, resolved)


def _use(request: Request, resolved: Resolved) -> None:
    """Predicts or exports, without importing the modules of training, which takes time."""
    from bertjax.model import Model
    from bertjax.modes import predictions, record_tables
    from bertjax.modes.export import card_fields, export
    from bertjax.modes.predict import predict
    from bertjax.runs.checkpoints import digest, find_steps

    if request.run and not resolved.run:
        find_steps(request.run, request.checkpoint)  # raises UserError, because there is none
    columns = record_tables.parse_columns(request.columns, request.input)
    fields = card_fields(request.card)
    config, settings, task, _ = resolved.to_predict()
    model = Model(task, settings, config, request.run, request.checkpoint, resolved.published)
    if request.mode == "export":
        export(model, Path(request.output), request.run, fields, is_final=request.checkpoint == "final")
        return

    def fingerprint(form: str) -> str:
        weights = digest(request.run, request.checkpoint) if request.run else ""
        description = {**config, "form": form, **({"columns": columns} if columns else {})}
        return predictions.fingerprint(description, weights, request.input)

    predict(model, request, fingerprint, columns)


def _train_or_score(request: Request, resolved: Resolved) -> Outcome:
    """Runs the modes that read the data of a run, or an example of them."""
    if request.mode == "train":
        from bertjax.modes.train import train

        return train(resolved, request)
    if request.mode == "plan":
        from bertjax.modes.plan import plan

        record = plan(resolved, request.topology, request.plan_search, request.plot)
        _write(request.output, record)
        return Outcome.DONE if record["fits"] else Outcome.FAILED
    if request.mode == "evaluate":
        from bertjax.modes.evaluate import evaluate, table

        if is_page := request.output.endswith(".html"):
            tool("page libraries")()
        predictions_of: dict[str, list[Record]] | None = {} if is_page else None
        of_request = request.checkpoint, request.sources, request.overrides
        record = evaluate(resolved, request.run, *of_request, predictions_of)
        if is_page:
            model = Path(request.workdir or resolved.config["init_from"])
            content = tool("evaluation page")(model, record, predictions_of)
            with streams.open_output(request.output, distributed.is_first_process()) as file:
                file.write(content)
        else:
            _write(request.output, record, table)
        return Outcome.DONE
    if request.mode == "check":
        from bertjax.modes.check import check

        record = check(resolved, Path(request.workdir))
        _write(request.output, record)
        return Outcome.DONE if record["can_learn"] else Outcome.FAILED
    from bertjax.modes.prepare import prepare

    prepare(resolved, Path(request.workdir))
    return Outcome.DONE


def _write(output: str, record: Record, table: Callable[[Record], str] = streams.json_line) -> None:
    """Writes a record as a line of JSON; to a terminal, as `table` formats it."""
    line = streams.json_line(record)
    if output == "-" and sys.stdout.isatty():
        line = table(record)
    with streams.open_output(output, distributed.is_first_process()) as file:
        file.write(line)
