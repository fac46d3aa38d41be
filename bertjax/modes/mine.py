"""`--mode=mine`."""

from pathlib import Path

from bertjax import distributed
from bertjax.contract import MiningTask
from bertjax.errors import UserError
from bertjax.modes import config_values, streams
from bertjax.modes.stages import Resolved
from bertjax.progress import track
from bertjax.training.inference import Inference, Predictor, reported


def mine(resolved: Resolved, output: str) -> None:
    """Writes training rows with hard negatives as JSON lines.

    Args:
      resolved: the experiment.
      output: a file, which gets its name when it is complete; "-" for standard output.
    Raises:
      UserError: for a task without this mode, or bad rows.
    """
    if not issubclass(resolved.module.Task, MiningTask):
        fix = "add --config=configs/retrieval.py --config.init_from=FOLDER_OR_RUN, and omit --workdir"
        got = f"the experiment {resolved.config['experiment']}"
        raise UserError("--mode=mine", got=got, expected="configs/retrieval.py", fix=fix)
    resolved = resolved._replace(config=config_values.to_mine(resolved.config))
    data = resolved.data(Path(resolved.config["init_from"]))
    _, settings, task, _ = resolved.to_score(data)
    assert isinstance(task, MiningTask)
    with streams.open_output(output, distributed.is_first_process()) as file:
        inference = Inference(task, settings, None, "final", resolved.published)
        examples = track(reported(data.validation_examples(), "texts"), "encoding", "text")
        results = Predictor(task, inference.mesh)(inference.params, examples)
        file.writelines(map(streams.json_line, task.mine(results)))
