"""Ablation: BERT's two pretraining tasks, with five fine-tuning tasks (Devlin et al. 2019, table 5).

    python launch.py --sweep=configs/sweeps/bert_pretraining_tasks.py --workdir=runs/tasks \\
        --set='pretrain*.data.source=wiki/*.txt' --set=mnli.data.source=MNLI/train.tsv \\
        --set=mnli.data.valid_source=MNLI/dev_matched.tsv ...
    python launch.py --sweep=configs/sweeps/bert_pretraining_tasks.py:tiny --workdir=runs/tasks \\
        --set=sst2.data.source=SST-2/train.tsv --set=sst2.data.valid_source=SST-2/dev.tsv \\
        --set=mrpc.data.source=MRPC/train.tsv --set=mrpc.data.valid_source=MRPC/dev.tsv

Pretrains BERT-Base three times, because the last two rows share a pretraining, and fine-tunes four rows on five tasks
with each seed. `tiny` uses a small model and two tasks, and pretrains on the embedded documentation unless
`pretrain*.data.source` is set.
"""

from typing import Any

from bertjax.configs.sweeps import parts

_TASKS = {"mnli": "MNLI-m", "qnli": "QNLI", "mrpc": "MRPC", "sst2": "SST-2", "squad": "SQuAD F1"}
_NO_NSP = {"pretrain*.data.next_sentence": False}
_LTR = {**_NO_NSP, "pretrain*.objective": "causal_lm", "pretrain.model.direction": "left_to_right"}


def get_sweep(variant: str = "") -> dict[str, Any]:
    """Returns the sweep at the paper's scale, or `tiny`."""
    tiny = parts.is_tiny(variant)
    tasks = parts.TINY_TASKS if tiny else _TASKS
    lstm = {f"{task}.model.lstm_size": 64 if tiny else 768 for task in tasks}
    rows: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
        "BERT": ({}, (84.4, 88.4, 86.7, 92.7, 88.5)),
        "no NSP": (_NO_NSP, (83.9, 84.9, 86.5, 92.6, 87.9)),
        "LTR & no NSP": (_LTR, (82.1, 84.3, 77.5, 92.1, 77.8)),
        "+ BiLSTM": ({**_LTR, **lstm}, (82.1, 84.1, 75.7, 91.6, 84.9)),
    }
    return {
        "stages": [*parts.tiny(), *parts.tiny_tasks()]
        if tiny
        else [*parts.base(), *(parts.task(name, "pretrain512") for name in _TASKS)],
        "rows": [
            parts.row(name, values, {} if tiny else dict(zip(_TASKS.values(), paper, strict=True)))
            for name, (values, paper) in rows.items()
        ],
        "base": "BERT",
        "seeds": (0, 1, 2),
        "metrics": [parts.task_metric(name, heading) for name, heading in tasks.items()],
        "source": "Devlin et al. 2019, table 5: BERT-Base on development sets.",
        "needs": {**({} if tiny else parts.base_needs()), **parts.task_needs(list(tasks))},
    }
