"""Fine-tunes BERT to tag words, for example with named entities or parts of speech.

    python launch.py --config=configs/tagging.py --workdir=runs/ner --config.init_from=CASED_BERT_FOLDER \\
        --config.data.source=eng.train --config.data.valid_source=eng.testa
    python launch.py --config=configs/tagging.py:conllu --workdir=runs/pos --config.init_from=CASED_BERT_FOLDER \\
        --config.data.source=en_ewt-ud-train.conllu --config.data.valid_source=en_ewt-ud-dev.conllu
    python launch.py --config=configs/tagging.py:tiny --workdir=runs/mine --config.data.vocab_file=vocab.txt \\
        --config.data.source=train.conll
    python launch.py --config=configs/tagging.py --workdir=runs/spans --config.init_from=CASED_BERT_FOLDER \\
        --config.data.source=doccano.jsonl
    python launch.py --mode=predict --workdir=runs/ner --input=sentences.txt --output=tags.jsonl

The variant, after the colon, is any of a size, `conllu` or `klue_ner`, and `features`, separated by commas:

- Sizes: tiny, mini, small, medium, base, large start from random weights, with the vocabulary in `data.vocab_file`,
  which is cased unless `data.lowercase` is set. Without a size, `init_from` determines it: a Hugging Face folder, a
  google-research checkpoint, or a bertjax run. Cased models recognize names best.
- Files have one word per line and a blank line after each sentence. The word is in the first column and its tag in
  the last, as in CoNLL-2003. `conllu` reads the columns of words and universal parts of speech in CoNLL-U files.
  Tables have lists of words and tags, texts with spans of characters, or a word in each row (docs/reference/inputs.md);
  `data.text_field`, `data.tags_field` and `data.sentence_field` name columns without a usual name.
- `klue_ner` reads the published files of KLUE-NER (klue-ner-v1.1_train.tsv, ..._dev.tsv; Park et al. 2021), with a
  character per line, and selects the checkpoint by KLUE's macro F1 of entities. KLUE also reports
  `character_macro_f1`. Pieces of the vocabulary across the ends of entities limit both: the log counts tags that change
  inside a token.
- `features` trains a tagger of two BiLSTMs on the last four layers of a frozen BERT (section 5.3).
- `data.scheme` is detected from the tags: BIO (IOB2), IOB1, IO, BIOES, BILOU, or plain (parts of speech). If the
  detection is wrong, set the scheme. Entities are learned and predicted in BIO, and scored with F1 as in seqeval and
  conlleval. Plain tags are scored with accuracy only.
- Texts are split at spaces and at punctuation marks. If words such as "U.S." or "co-op" are not split in the
  training sentences, separate the words of the input with spaces as in training, and set
  `data.split_punctuation=False`. In tables, `data.text_field` names the column to read (docs/reference/inputs.md).

BERT's recipe: 3 epochs with batch size 32 and learning rate 5e-5. In the paper, BERT-Base has 96.4 F1 on the
development set of CoNLL-2003 and 92.4 on its test set, with the document as context of each sentence, which is not
used here.
"""

from ml_collections import ConfigDict

from bertjax.configs import parts
from bertjax.configs.sizes import SIZES

VARIANTS = (tuple(SIZES), ("conllu", "klue_ner"), ("features",))


def get_config(variant: str = "") -> ConfigDict:
    """Returns the config of a variant such as `base`, `conllu` or `base,conllu`."""
    size, files, features = parts.chosen(variant, VARIANTS)
    config = parts.fine_tuning("tagging", size)
    if features:
        config.model.feature_layers = (-4, -3, -2, -1)
        config.model.lstm_layers = 2
        config.model.lstm_size = 768
        config.num_epochs = 10.0
        config.optimizer.learning_rate = 1e-3
    parts.unset(config.checkpoint, ["best_metric"])  # default: valid/f1, or valid/accuracy for plain tags
    if size:
        config.data.lowercase = False
    if files == "klue_ner":
        config.data.update({"units": "characters", "scheme": "BIO"})
        config.checkpoint.best_metric = "valid/entity_macro_f1"
    if files == "conllu":
        config.data.update({"word_column": 1, "tag_column": 3, "scheme": "plain"})
    return config
