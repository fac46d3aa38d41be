"""Ablation: the size of BERT (Devlin et al. 2019, table 6).

    python launch.py --sweep=configs/sweeps/bert_model_size.py --workdir=runs/sizes \\
        --set='pretrain*.data.source=wiki/*.txt' --set=mnli.data.source=MNLI/train.tsv \\
        --set=mnli.data.valid_source=MNLI/dev_matched.tsv ...
    python launch.py --sweep=configs/sweeps/bert_model_size.py:tiny --workdir=runs/sizes \\
        --set=sst2.data.source=SST-2/train.tsv --set=sst2.data.valid_source=SST-2/dev.tsv \\
        --set=mrpc.data.source=MRPC/train.tsv --set=mrpc.data.valid_source=MRPC/dev.tsv

Pretrains six models, from 3 layers of width 768 to BERT-Large, and fine-tunes each on three tasks with each seed.
`tiny` has three sizes, from 1 layer of width 64 to 2 layers of width 128.
"""

from typing import Any

from bertjax.configs.sweeps import parts

_TASKS = {"mnli": "MNLI-m", "mrpc": "MRPC", "sst2": "SST-2"}
# (layers, width, heads): validation perplexity, the scores of the three tasks
_PAPER = {
    (3, 768, 12): (5.84, 77.9, 79.8, 88.4),
    (6, 768, 3): (5.24, 80.6, 82.2, 90.7),
    (6, 768, 12): (4.68, 81.9, 84.8, 91.3),
    (12, 768, 12): (3.99, 84.4, 86.7, 92.9),
    (12, 1024, 16): (3.54, 85.7, 86.9, 93.3),
    (24, 1024, 16): (3.23, 86.6, 87.8, 93.7),
}
_TINY: dict[tuple[int, int, int], tuple[float, ...]] = {(1, 64, 1): (), (1, 128, 2): (), (2, 128, 2): ()}


def get_sweep(variant: str = "") -> dict[str, Any]:
    """Returns the sweep at the paper's scale, or `tiny`."""
    tiny = parts.is_tiny(variant)
    last = "pretrain128" if tiny else "pretrain512"
    perplexity = parts.metric("perplexity", last, "valid/masked_lm_loss", "exponential")
    tasks = parts.TINY_TASKS if tiny else _TASKS
    headings = ["perplexity", *_TASKS.values()]
    return {
        "stages": [*parts.tiny(), *parts.tiny_tasks()]
        if tiny
        else [*parts.base(), *(parts.task(name, "pretrain512") for name in _TASKS)],
        "rows": [
            parts.row(
                f"L={layers} H={hidden} A={heads}",
                {
                    "pretrain.model.num_layers": layers,
                    "pretrain.model.hidden_size": hidden,
                    "pretrain.model.num_heads": heads,
                    "pretrain.model.intermediate_size": 4 * hidden,
                },
                dict(zip(headings, paper, strict=False)),
            )
            for (layers, hidden, heads), paper in (_TINY if tiny else _PAPER).items()
        ],
        "base": "L=2 H=128 A=2" if tiny else "L=12 H=768 A=12",
        "seeds": (0, 1, 2),
        "metrics": [perplexity, *(parts.task_metric(name, heading) for name, heading in tasks.items())],
        "source": "Devlin et al. 2019, table 6: perplexity on held-out text, accuracy on development sets.",
        "needs": {**({} if tiny else parts.base_needs()), **parts.task_needs(list(tasks))},
    }
