"""Ablation: which layers of a frozen BERT are the best features for NER, compared with fine-tuning.

    python launch.py --sweep=configs/sweeps/bert_features.py --workdir=runs/features --set=ner.init_from=CASED_BERT \\
        --set=ner.data.source=eng.train --set=ner.data.valid_source=eng.testa
    python launch.py --sweep=configs/sweeps/bert_features.py:tiny --workdir=runs/features \\
        --set=ner.data.source=train.conll

Reproduces table 7 of Devlin et al. 2019. CASED_BERT is a folder of a model with 12 layers, such as BERT-Base. `tiny`
first pretrains a model of 2 layers with an uncased vocabulary, and reads any file with columns of words and tags.
"""

from typing import Any

from bertjax.configs.sweeps import parts

_FEATURES = {"ner": "configs/tagging.py:features"}
# name: (layers, how they are combined, the paper's F1)
_PAPER = {
    "embeddings": ((0,), "concatenation", 91.0),
    "second-to-last": ((-2,), "concatenation", 95.6),
    "last": ((-1,), "concatenation", 94.9),
    "weighted sum of last four": ((-4, -3, -2, -1), "weighted", 95.9),
    "last four concatenated": ((-4, -3, -2, -1), "concatenation", 96.1),
    "weighted sum of all": (tuple(range(1, 13)), "weighted", 95.5),
}
_TINY = {
    "embeddings": ((0,), "concatenation", 0.0),
    "last": ((-1,), "concatenation", 0.0),
    "weighted sum of all": ((1, 2), "weighted", 0.0),
}


def get_sweep(variant: str = "") -> dict[str, Any]:
    """Returns the sweep at the paper's scale, or `tiny`."""
    tiny = parts.is_tiny(variant)
    needs = {"ner.data.source": "sentences with tags, a word on each line"}
    if not tiny:
        needs |= {
            "ner.init_from": "a cased BERT-Base",
            "ner.data.valid_source": "validation sentences, in the same form",
        }
    return {
        "stages": [
            *parts.tiny(),
            parts.stage("ner", "configs/tagging.py", {"data.seq_len": parts.TINY_LENGTH}, "pretrain128"),
        ]
        if tiny
        else [parts.task("ner")],
        "rows": [
            parts.row("fine-tuned", {}, {} if tiny else {"F1": 96.4}),
            *(
                parts.row(
                    name,
                    {"ner.model.feature_layers": layers, "ner.model.mixing": mixing},
                    {} if tiny else {"F1": paper},
                    _FEATURES,
                )
                for name, (layers, mixing, paper) in (_TINY if tiny else _PAPER).items()
            ),
        ],
        "base": "fine-tuned",
        "seeds": (0, 1, 2),
        "metrics": [parts.task_metric("ner", "F1")],
        "source": "Devlin et al. 2019, table 7: BERT-Base, F1 on the development set of CoNLL-2003, with the document "
        "around each sentence, which is not used here.",
        "needs": needs,
    }
