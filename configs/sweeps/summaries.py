"""Summaries of the same articles: the first sentences, BertSum, BertSumAbs, and an encoder-decoder.

    python launch.py --sweep=configs/sweeps/summaries.py --workdir=runs/summaries --set=summarize.init_from=BERT_BASE \\
        --set=encoder-decoder/summarize.init_from=bart-large --set=summarize.data.source=train.jsonl \\
        --set=summarize.data.valid_source=valid.jsonl --set=summarize.data.test_source=test.jsonl
    python launch.py --sweep=configs/sweeps/summaries.py:tiny --workdir=runs/summaries --seeds=0 ...

All rows have ROUGE F1 of the test articles, by the same program (`rouge.flavor`). ROUGE-L takes a summary as one
sequence of words, ROUGE-Lsum its sentences. What papers on CNN/Daily Mail call ROUGE-L is ROUGE-Lsum. The first
sentences (LEAD) and the oracle's are baselines of BertSum's run. With one seed, scores have the 95 % interval over
articles. `tiny` trains models from random weights, in minutes per row on two cores.
"""

from typing import Any

from bertjax.configs.sweeps import parts

_ROUGE = {"ROUGE-1": "rouge1", "ROUGE-2": "rouge2", "ROUGE-L": "rougeL", "ROUGE-Lsum": "rougeLsum"}
_PUBLISHED = ("ROUGE-1", "ROUGE-2", "ROUGE-Lsum")
_FILES = {"source": "training articles", "valid_source": "validation articles", "test_source": "test articles"}
_TOKENS = 128  # of a summary
_TINY = {"batch_size": 8, "data.seq_len": 256}
_TINY_DECODER = {
    **_TINY,
    "num_steps": 300,
    "evaluate_every": 300,
    "num_scored": 20,
    "checkpoint.save_every": 300,
    "decoding.max_length": _TOKENS,
    "decoding.max_extra": _TOKENS,
    "optimizer.schedule": "linear",
    "optimizer.learning_rate": 1e-3,
    "optimizer.warmup_steps": 30,
}
_TINY_PAIRS = {**parts.SMALL_TRANSFORMER, **_TINY_DECODER, "optimizer.learning_rate": 3e-3, "data.vocab_size": 4000}


def get_sweep(variant: str = "") -> dict[str, Any]:
    """Returns the sweep at the papers' scale, or `tiny`."""
    tiny = parts.is_tiny(variant)
    extract = f"configs/bertsum_ext.py:{'tiny,transformer' if tiny else 'transformer,presumm'}"
    write = f"configs/bertsum_abs.py:{'tiny' if tiny else 'cnndm'}"
    pairs = f"configs/text_to_text.py:{'tiny,' if tiny else ''}summarization"

    def row(
        name: str, config: str, values: dict[str, Any], paper: tuple[float, ...] = (), baseline: str = ""
    ) -> dict[str, Any]:
        overrides = {f"summarize.{key}": value for key, value in values.items()}
        published = {} if tiny else dict(zip(_PUBLISHED, paper, strict=False))
        return parts.row(name, overrides, published, {"summarize": config}, baseline)

    of_extract = _TINY if tiny else {}
    return {
        "stages": [parts.stage("summarize", extract)],
        "rows": [
            row("LEAD", extract, of_extract, (40.42, 17.62, 36.67), "lead"),
            row("BertSum", extract, of_extract, (43.25, 20.24, 39.63)),
            row("BertSumAbs", write, {**_TINY_DECODER, "target_len": _TOKENS} if tiny else {}, (41.72, 19.39, 38.76)),
            row("encoder-decoder", pairs, _TINY_PAIRS if tiny else {"init_from": ""}, (44.16, 21.28, 40.90)),
            row("oracle", extract, of_extract, (52.59, 31.24, 48.87), "oracle"),
        ],
        "base": "LEAD",
        "seeds": (0, 1, 2),
        "metrics": [parts.metric(name, "summarize", f"test/{figure}") for name, figure in _ROUGE.items()],
        "source": "CNN/Daily Mail; Liu and Lapata 2019, and for the encoder-decoder BART (Lewis et al. 2020).",
        "needs": {
            **(
                {}
                if tiny
                else {"summarize.init_from": "weights (bert-base-uncased; bart-large for the encoder-decoder)"}
            ),
            **{f"summarize.data.{key}": what for key, what in _FILES.items()},
        },
    }
