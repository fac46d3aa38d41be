"""Ablation: the number of pretraining updates, masked and left to right (Devlin et al. 2019, appendix C.1).

    python launch.py --sweep=configs/sweeps/bert_steps.py --workdir=runs/steps \\
        --set=pretrain.data.source='wiki/*.txt' --set=mnli.data.source=MNLI/train.tsv \\
        --set=mnli.data.valid_source=MNLI/dev_matched.tsv
    python launch.py --sweep=configs/sweeps/bert_steps.py:tiny --workdir=runs/steps \\
        --set=sst2.data.source=SST-2/train.tsv --set=sst2.data.valid_source=SST-2/dev.tsv \\
        --set=mrpc.data.source=MRPC/train.tsv --set=mrpc.data.valid_source=MRPC/dev.tsv

Each number of updates is a separate pretraining at length 128 with its own learning-rate decay. In `tiny`, it is 1,000
or 3,000 updates at length 32 with a constant learning rate. Then each row makes 600 updates at length 128 with a decay,
which the row's name does not count.
"""

from typing import Any

from bertjax.configs.sweeps import parts

_THOUSANDS = (200, 400, 500, 600, 800, 1000)
_LTR = {
    "pretrain*.data.next_sentence": False,
    "pretrain*.objective": "causal_lm",
    "pretrain.model.direction": "left_to_right",
}


def get_sweep(variant: str = "") -> dict[str, Any]:
    """Returns the sweep at the paper's scale, or `tiny`."""
    tiny = parts.is_tiny(variant)
    tasks = parts.TINY_TASKS if tiny else {"mnli": "MNLI-m"}
    lengths = {f"{count}k": 1000 * count for count in _THOUSANDS}
    if tiny:
        lengths = {"1k": 1000, "3k": 3000}
    return {
        "stages": [*parts.tiny(), *parts.tiny_tasks()] if tiny else [parts.base()[0], parts.task("mnli", "pretrain")],
        "rows": [
            parts.row(f"{name}, {length} steps", {**values, "pretrain.num_steps": number})
            for name, values in (("masked", {}), ("left to right", _LTR))
            for length, number in lengths.items()
        ],
        "base": "masked, 3k steps" if tiny else "masked, 500k steps",
        "seeds": (0, 1, 2),
        "metrics": [parts.task_metric(name, heading) for name, heading in tasks.items()],
        "source": "Devlin et al. 2019, appendix C.1, a chart without numbers: 1M updates are worth almost 1.0 more on "
        "MNLI than 500k.",
        "needs": {
            **({} if tiny else {"pretrain.data.source": "the text to pretrain on"}),
            **parts.task_needs(list(tasks)),
        },
    }
