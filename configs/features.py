"""Vectors from a BERT that stays as it is: of word pieces, of words, or of whole texts. Nothing is trained.

    python launch.py --mode=predict --config=configs/features.py:word --config.init_from=BERT_FOLDER \\
        --input=texts.txt --output=vectors/
    python launch.py --mode=predict --config=configs/features.py:sentence --config.init_from=SENTENCE_BERT_FOLDER \\
        --input=texts.txt --output=vectors.jsonl

Behind the colon: piece, word or sentence (the key `pooling`); word without it. A line of the input is a text, or two
with a tab between them, which become one row as in BERT's pretraining; of tables `data.text_columns` are read
(docs/reference/inputs.md).

- Output: a folder (with a slash at its end) has safetensors in shards, and which words their rows are of; read it with
  `bertjax.data.readers.feature_files.FeatureFiles`. Anything else has a line of JSON for each text, with 6 decimals.
- Long texts: pieces and words get their vectors from overlapping rows, each from the row that shows it the most
  context, so none is left out. The vector of a sentence is that of its beginning; how many were cut is told.
- Layers: 0 is the embeddings, -1 the last. BERT's best frozen features on CoNLL-2003 (section 5.3, table 7) are the
  last four concatenated, 96.1 F1 on the development set; the second to last alone, `(-2,)`, has 95.6.
- A folder of sentence-transformers tells how its vectors are pooled, and whether they are scaled to length 1.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from bertjax.configs import parts

POOLINGS = ("piece", "word", "sentence")


def get_config(variant: str = "") -> ConfigDict:
    """The config of a variant: piece, word or sentence."""
    (pooling,) = parts.chosen(variant, (POOLINGS,))
    config = ConfigDict()
    config.experiment = "features"
    config.init_from = ""
    config.pooling = pooling or "word"
    config.word_pooling = "first"  # or "mean": of the word's pieces
    config.sentence_pooling = placeholder(str)  # as init_from says, or else "mean"; also "cls" and "max"
    config.normalize = placeholder(bool)  # to length 1; as init_from says, for sentences
    config.dtype_out = "float32"  # or "float16", half the size
    config.mesh = parts.mesh()
    config.model = _model()
    config.data = ConfigDict()
    config.data.seq_len = placeholder(int)  # all positions of the model, or what sentence-transformers takes
    config.data.text_columns = ("text",)  # of a table; two columns for pairs
    config.data.on_bad_row = "stop"
    config.data.vocab_file = ""
    config.data.lowercase = placeholder(bool)
    return config


def _model() -> ConfigDict:
    model = parts.model("")
    for key in (
        "dropout",
        "attention_dropout",
        "activation_dropout",
        "initializer",
        "initializer_range",
        "remat",
    ):  # of training
        del model[key]
    model.layers = ()  # the last four; of a sentence the last
    model.mixing = "concatenation"  # or "sum"
    return model
