"""Fine-tunes BERT to tag words: named entities, parts of speech, and whatever else is told for each word.

    python launch.py --config=configs/tagging.py --workdir=runs/ner --config.init_from=CASED_BERT_FOLDER \\
        --config.data.source=eng.train --config.data.valid_source=eng.testa
    python launch.py --config=configs/tagging.py:conllu --workdir=runs/pos --config.init_from=CASED_BERT_FOLDER \\
        --config.data.source=en_ewt-ud-train.conllu --config.data.valid_source=en_ewt-ud-dev.conllu
    python launch.py --config=configs/tagging.py:tiny --workdir=runs/mine --config.data.vocab_file=vocab.txt \\
        --config.data.source=train.conll
    python launch.py --mode=predict --workdir=runs/ner --input=sentences.txt --output=tags.jsonl

Behind the colon, separated by commas: a size, `conllu`, `features`.

- Sizes: tiny, mini, small, medium, base, large, from fresh weights, with a vocabulary in `data.vocab_file`, cased
  unless `data.lowercase` says otherwise. Without a size, `init_from` gives it: a Hugging Face folder, a checkpoint of
  Google's, or a run of ours. Names are told best by cased models.
- Files have a word on each line and a blank line after each sentence. The word is in the first column and its tag in
  the last one, as in CoNLL-2003; with `conllu` they are where CoNLL-U has words and universal parts of speech.
- `features` trains a tagger of two BiLSTMs on the last four layers of a BERT that stays as it is (section 5.3).
- `data.scheme` is told by the tags: BIO (IOB2), IOB1, IO, BIOES, or plain (parts of speech). Entities are learned and
  predicted in BIO, and scored by F1 as seqeval and conlleval do; plain tags have accuracy alone. Where the tags
  mislead, name the scheme.
- To predict, words are what is between spaces and single punctuation marks. Give text whose words are separated as
  in the training sentences, and set `data.split_punctuation=False`, where those have "U.S." or "co-op" as one word.
  Of tables `data.text_field` is read (docs/reference/inputs.md).

BERT's recipe: 3 epochs of batches of 32 at 5e-5. The paper's BERT-Base has 96.4 F1 on the development set of CoNLL-2003
and 92.4 on its test set, with the document around each sentence, which is not used here.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from bertjax.configs import parts
from bertjax.configs.sizes import SIZES


def get_config(variant: str = "") -> ConfigDict:
    """The config of a variant such as `base`, `conllu` or `base,conllu`."""
    size, conllu, features = parts.chosen(variant, (tuple(SIZES), ("conllu",), ("features",)))
    config = parts.fine_tuning("tagging", size)
    config.model.feature_layers = (-4, -3, -2, -1) if features else ()
    config.model.mixing = "concatenation"
    config.model.lstm_layers = 2 if features else 0
    if features:
        config.model.lstm_size = 768
        config.num_epochs = 10.0
        config.optimizer.learning_rate = 1e-3
    config.checkpoint.best_metric = placeholder(str)  # valid/f1, or valid/accuracy of plain tags
    config.data = _data(size)
    if conllu:
        config.data.update({"word_column": 1, "tag_column": 3, "scheme": "plain"})
    return config


def _data(size: str) -> ConfigDict:
    data = parts.rows(size)
    data.word_column = 0
    data.tag_column = -1
    data.scheme = "auto"
    data.labels = ()  # of the training sentences
    data.packing = False
    data.split_punctuation = True
    data.text_field = ""  # the column of the sentences in a table to predict on
    data.lowercase = False if size else placeholder(bool)
    return data
