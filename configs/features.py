"""Extracts vectors of word pieces, words or whole texts from a frozen BERT. Nothing is trained.

    python launch.py --mode=predict --config=configs/features.py:word --config.init_from=BERT_FOLDER \\
        --input=texts.txt --output=vectors/
    python launch.py --mode=predict --config=configs/features.py:sentence --config.init_from=SENTENCE_BERT_FOLDER \\
        --input=texts.txt --output=vectors.jsonl

The variant, after the colon, is piece, word (the default) or sentence, and sets the key `pooling`. An input line is a
text, or two texts separated by a tab, which form one row as in BERT's pretraining. In tables, `data.text_columns` names
the columns to read (docs/reference/inputs.md).

- Output: a name that ends in a slash is a folder with vectors.npy and the words of each vector; read it with
  `bertjax.data.readers.feature_files.FeatureFiles`. Any other name is a file with a line of JSON per text and numbers
  of 6 decimals.
- Long texts: pieces and words get vectors from overlapping rows; each vector comes from the row with the most context,
  and none is omitted. A sentence vector covers only the beginning; the log reports how many texts were truncated.
- Layers: 0 is the embeddings, -1 the last layer. BERT's best frozen features on CoNLL-2003 (section 5.3, table 7) are
  the last four layers concatenated, with 96.1 F1 on the development set; the second to last alone, `(-2,)`, has 95.6.
- A sentence-transformers folder determines the pooling, maps of the vectors, and whether vectors are scaled to length
  1. Its default prompt precedes each text; `prompt_name` chooses another of its prompts, and `prompt` gives the text.
- --mode=export with the variant sentence writes a folder of sentence-transformers.
"""

from ml_collections import ConfigDict

from bertjax.configs import parts

POOLINGS = ("piece", "word", "sentence")
VARIANTS = (POOLINGS,)


def get_config(variant: str = "") -> ConfigDict:
    """Returns the config of a variant: piece, word or sentence."""
    (pooling,) = parts.chosen(variant, VARIANTS)
    config = parts.inference("features")
    config.pooling = pooling or "word"
    return config
