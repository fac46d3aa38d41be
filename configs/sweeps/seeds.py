"""Ablation: the variance of fine-tuning over seeds, with and without Adam's bias correction.

    python launch.py --sweep=configs/sweeps/seeds.py --workdir=runs/seeds --set='*.init_from=BERT_LARGE' \\
        --set=rte.data.source=RTE/train.tsv --set=rte.data.valid_source=RTE/dev.tsv ...
    python launch.py --sweep=configs/sweeps/seeds.py:tiny --workdir=runs/seeds \\
        --set=sst2.data.source=SST-2/train.tsv --set=sst2.data.valid_source=SST-2/dev.tsv \\
        --set=mrpc.data.source=MRPC/train.tsv --set=mrpc.data.valid_source=MRPC/dev.tsv

BERT's original code has no bias correction. Small tasks vary most (Zhang et al. 2021; Mosbach et al. 2021). `tiny`
pretrains a small model once, with the first seed.
"""

from typing import Any

from bertjax.configs.sweeps import parts

_TASKS = {"rte": "RTE", "mrpc": "MRPC", "cola": "CoLA", "stsb": "STS-B", "squad": "SQuAD F1"}


def get_sweep(variant: str = "") -> dict[str, Any]:
    """Returns the sweep at the paper's scale, or `tiny`."""
    tiny = parts.is_tiny(variant)
    tasks = parts.TINY_TASKS if tiny else _TASKS
    weights = {} if tiny else {f"{name}.init_from": "BERT-Large" for name in tasks}
    return {
        "stages": [*parts.tiny(), *parts.tiny_tasks()] if tiny else [parts.task(name) for name in _TASKS],
        "rows": [
            parts.row("bias correction", {}, {} if tiny else {"SQuAD F1": 90.68}),
            parts.row("no bias correction", {f"{name}.optimizer.bias_correction": False for name in tasks}),
            parts.row("20 epochs", {f"{name}.num_epochs": 20.0 for name in tasks}),
        ],
        "base": "bias correction",
        "seeds": tuple(range(3 if tiny else 10)),
        "metrics": [parts.task_metric(name, heading) for name, heading in tasks.items()],
        "source": "NVIDIA's BERT in DeepLearningExamples: BERT-Large on SQuAD 1.1, ten seeds, 90.68 ± 0.16.",
        "needs": {**weights, **parts.task_needs(list(tasks))},
    }
