"""Ablation: how tokens to predict are masked, kept or replaced in pretraining (Devlin et al. 2019, table 8).

    python launch.py --sweep=configs/sweeps/bert_masking.py --workdir=runs/masking \\
        --set='pretrain*.data.source=wiki/*.txt' --set=mnli.data.source=MNLI/train.tsv \\
        --set=mnli.data.valid_source=MNLI/dev_matched.tsv --set='ner*.data.source=eng.train' \\
        --set='ner*.data.valid_source=eng.testa'
    python launch.py --sweep=configs/sweeps/bert_masking.py:tiny --workdir=runs/masking \\
        --set=sst2.data.source=SST-2/train.tsv --set=sst2.data.valid_source=SST-2/dev.tsv \\
        --set=mrpc.data.source=MRPC/train.tsv --set=mrpc.data.valid_source=MRPC/dev.tsv

Pretrains BERT-Base six times and fine-tunes each on MNLI and on NER; NER is also trained on frozen features. `tiny`
also pretrains six times; in its few updates, 80/0/20 and 0/0/100 do not learn anything yet (docs/results.md).
"""

from typing import Any

from bertjax.configs.sweeps import parts

_HEADINGS = ("MNLI", "NER fine-tuned", "NER features")
# (mask, keep, replace) in percent: scores in the order of _HEADINGS
_PAPER = {
    (80, 10, 10): (84.2, 95.4, 94.9),
    (100, 0, 0): (84.3, 94.9, 94.0),
    (80, 0, 20): (84.1, 95.2, 94.6),
    (80, 20, 0): (84.4, 95.2, 94.7),
    (0, 20, 80): (83.7, 94.8, 94.6),
    (0, 0, 100): (83.6, 94.9, 94.6),
}


def get_sweep(variant: str = "") -> dict[str, Any]:
    """Returns the sweep at the paper's scale, or `tiny`."""
    tiny = parts.is_tiny(variant)
    features = parts.stage("ner_features", "configs/tagging.py:features", init_from="pretrain512")
    tasks = [parts.task("mnli", "pretrain512"), parts.task("ner", "pretrain512"), features]
    return {
        "stages": [*parts.tiny(), *parts.tiny_tasks()] if tiny else [*parts.base(), *tasks],
        "rows": [
            parts.row(
                f"{mask}/{keep}/{replace}",
                {
                    "pretrain*.masking.mask_fraction": mask / 100,
                    "pretrain*.masking.keep_fraction": keep / 100,
                    "pretrain*.masking.random_fraction": replace / 100,
                },
                {} if tiny else dict(zip(_HEADINGS, _PAPER[mask, keep, replace], strict=True)),
            )
            for mask, keep, replace in _PAPER
        ],
        "base": "80/10/10",
        "seeds": (0, 1, 2),
        "metrics": [parts.task_metric(name, heading) for name, heading in parts.TINY_TASKS.items()]
        if tiny
        else [
            parts.task_metric("mnli", "MNLI"),
            parts.task_metric("ner", "NER fine-tuned"),
            parts.metric("NER features", "ner_features", "valid/f1", "percent", digits=1),
        ],
        "source": "Devlin et al. 2019, table 8: rows are MASK/SAME/RND in percent; on development sets.",
        "needs": parts.task_needs(list(parts.TINY_TASKS))
        if tiny
        else {**parts.base_needs(), **parts.task_needs(["mnli", "ner", "ner_features"])},
    }
