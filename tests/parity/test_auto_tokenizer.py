"""Exported translation models opened by transformers: the ids and texts of tokenizers, and `generate` (slow)."""

import jax
import pytest

from bertjax.data.text import subwords
from bertjax.data.text.sentencepiece_models import SentencePiece
from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.interop import marian_tokenizers
from bertjax.interop.vocabularies import SavedVocabularies
from tests.data.text.test_subwords import bpe_of
from tests.experiments import test_translation as translation
from tests.experiments.commands import done
from tests.interop import test_marian
from tests.random_params import random_params

pytestmark = pytest.mark.slow

TEXTS = [*test_marian.TEXTS, "the newest cat's hat </s> <pad> [SEP] жж", "a  b", ""]


def vocabularies(kind, folder):
    """The vocabularies of a kind: joint, or one per side."""
    bpe = [bpe_of(TEXTS, size) for size in (60, 50)]
    letters = [subwords.characters(sorted(set(text))) for text in TEXTS[:2]]
    tokens = [(*SPECIALS, *"abcdefgh", *(f"##{letter}" for letter in letters_)) for letters_ in ("abc", "abcdefghirst")]
    wordpiece = [WordPiece(each, lowercase=True) for each in tokens]
    models = [test_marian.train_sentencepiece(size) for size in (36, 37)]
    sentencepiece = [SentencePiece(model, kind) for model in models]
    if kind.startswith("marian"):
        folder.mkdir()
        test_marian.write_vocabularies(folder, separate=kind.endswith("two"))
        return SavedVocabularies(*marian_tokenizers.read_tokenizers(folder))
    found = {"bpe": bpe, "characters": letters, "wordpiece": wordpiece, "sentencepiece": sentencepiece}[kind.split()[0]]
    return SavedVocabularies(*found) if kind.endswith("two") else SavedVocabularies(found[0], found[0])


@pytest.mark.parametrize("number", ["", " two"])
@pytest.mark.parametrize("kind", ["bpe", "characters", "wordpiece", "sentencepiece", "marian"])
def test_ids_and_text_equal_ours(tmp_path, kind, number):
    import transformers

    source, target = both = vocabularies(kind + number, tmp_path / "given")
    folder = tmp_path / "saved"
    both.save(folder, for_transformers=True)
    (folder / "config.json").write_text('{"model_type": "marian"}')
    tokenizer = decoder = transformers.AutoTokenizer.from_pretrained(folder)
    if number and kind not in ("sentencepiece", "marian"):
        decoder = transformers.AutoTokenizer.from_pretrained(folder / "target")
    texts = [*TEXTS, *([">>deu<< A dog runs", ">>xyz<<Zwei", "unknown: qxz"] if kind == "marian" else [])]
    for text, ids, of_target in zip(texts, source.encode_batch(texts), target.encode_batch(texts), strict=True):
        assert tokenizer(text).input_ids == [*ids, source.sep_id], text
        if kind == "marian":
            assert tokenizer(text_target=text).input_ids == [*of_target, target.sep_id], text
    assert tokenizer.eos_token_id == source.sep_id
    assert tokenizer.pad_token_id == (target if kind == "sentencepiece" else source).pad_id
    for ids in target.encode_batch(TEXTS):
        pieces = [token for token in ids if token != target.unk_id]
        text = decoder.decode([*pieces, target.sep_id], skip_special_tokens=True)
        assert text == target.decode(pieces) or (kind == "sentencepiece" and text == target.decode(pieces).strip())


def exported(kind, folder):
    """An exported random model with vocabularies of a kind."""
    settings = {"num_beams": 3, "stopping": "hf", "length_penalty": "length", "alpha": 0.7, "block_ngrams": 3}
    settings |= {"max_length": 12, "min_extra": 2, "force_eos": kind != "wordpiece", "forbid_unk": True}
    options = {"model__norm": "post", "data__vocab_size": 70, "start_token": "pad", "data__seq_len": 24}
    options |= {f"decoding__{key}": value for key, value in settings.items()}
    if kind == "sentencepiece":
        options |= {"data__joint": False, "model__share_embeddings": False}
        for key, size in (("vocab_file", 36), ("target_vocab_file", 37)):
            path = folder / f"{key}.model"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(test_marian.train_sentencepiece(size))
            options[f"data__{key}"] = str(path)
    else:
        options |= {"data__subwords": kind, "data__lowercase": kind == "wordpiece"}
    task = translation.task_of(folder, **options)
    task.export(jax.tree.map(lambda leaf: 2 * leaf, random_params(task.init)), folder / "exported")
    return folder / "exported"


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
def test_generate_writes_our_translations(tmp_path, kind):
    """Uses AutoTokenizer and the folder's own generation_config.json, from sentence to sentence."""
    import transformers

    folder = exported(kind, tmp_path / kind)
    texts = ["a cat sees.", "old bird likes a dog.", "dog", "a bird a bird a cat."]
    given = ["--mode=predict", "--config=configs/translation.py", f"--config.init_from={folder}"]
    outcome = done(*given, stdin="".join(f"{text}\n" for text in texts).encode())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    found = model.generate(**tokenizer(texts, return_tensors="pt", padding=True))
    assert outcome.stdout.split("\n")[:-1] == tokenizer.batch_decode(found, skip_special_tokens=True)
    assert len({*outcome.stdout.split()}) > 2, "not the same few words again and again"
