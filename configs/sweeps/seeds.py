"""How much fine-tuning varies with the seed, and with Adam's bias correction left out, as BERT's code does.

    python launch.py --sweep=configs/sweeps/seeds.py --workdir=runs/seeds --set='*.init_from=BERT_LARGE' \\
        --set=rte.data.source=RTE/train.tsv --set=rte.data.valid_source=RTE/dev.tsv ...
    python launch.py --sweep=configs/sweeps/seeds.py:tiny --workdir=runs/seeds \\
        --set=package.data.source=docstrings.tsv

Small tasks vary most (Zhang et al. 2021; Mosbach et al. 2021). `tiny` pretrains a small model once, with the first
seed.
"""

from typing import Any

from configs.sweeps import parts

_TASKS = {"rte": "RTE", "mrpc": "MRPC", "cola": "CoLA", "stsb": "STS-B", "squad": "SQuAD F1"}


def get_sweep(variant: str = "") -> dict[str, Any]:
    """The sweep at the paper's scale, or `tiny`."""
    tiny = parts.is_tiny(variant)
    needs = parts.tiny_needs()
    if not tiny:
        needs = {**{f"{name}.init_from": "BERT-Large" for name in _TASKS}, **parts.task_needs(list(_TASKS))}
    every = "package" if tiny else "*"
    return {
        "stages": [{**parts.tiny(), "one_seed": True}, parts.tiny_task()]
        if tiny
        else [parts.task(name) for name in _TASKS],
        "rows": [
            parts.row("bias correction", {}, {} if tiny else {"SQuAD F1": 90.68}),
            parts.row("no bias correction", {f"{every}.optimizer.bias_correction": False}),
            parts.row("20 epochs", {f"{every}.num_epochs": 20.0}),
        ],
        "base": "bias correction",
        "seeds": tuple(range(3 if tiny else 10)),
        "metrics": parts.tiny_metrics()
        if tiny
        else [parts.task_metric(name, heading) for name, heading in _TASKS.items()],
        "source": "NVIDIA's BERT in DeepLearningExamples: BERT-Large on SQuAD 1.1, ten seeds, 90.68 ± 0.16.",
        "needs": needs,
    }
