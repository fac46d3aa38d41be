"""Models of transformers with added tokens, and runs that add tokens, compared with transformers (slow)."""

import shutil

import numpy as np
import pytest

import bertjax
from bertjax.interop.published import open_weights
from tests import tiny
from tests.data.text.test_added_tokens import VOCAB, wordpiece
from tests.experiments.commands import done, flags

pytestmark = pytest.mark.slow

TEXTS = ["the newtok a[ENT] covid x9", "x9s", "a b"]


def check(folder):
    """Checks the ids and vectors of a folder against transformers, and returns the prediction of a mask."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.BertForMaskedLM.from_pretrained(folder).eval()
    ours = bertjax.load(folder)
    ids = tokenizer(TEXTS)["input_ids"]
    assert [[ours.tokenizer.cls_id, *each, ours.tokenizer.sep_id] for each in ours.tokenizer.encode_batch(TEXTS)] == ids
    with torch.no_grad():
        vectors = [theirs.bert(torch.tensor([each])).last_hidden_state[0, 0].numpy() for each in ids]
    np.testing.assert_allclose(ours.encode(TEXTS, pooling="cls"), vectors, atol=1e-5)
    return ours.predict(["the [MASK] newtok"])[0]["masks"][0]


@pytest.mark.parametrize("added", [{"data.add_tokens": "('x9',)"}, {"data.add_words": 2}], ids=["tokens", "words"])
def test_a_run_adds_tokens_to_a_model_with_added_tokens(added, tmp_path):
    import torch
    import transformers

    tokenizer, folder = wordpiece(tmp_path, True), tmp_path / "theirs"
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=len(VOCAB), max_position_embeddings=32, initializer_range=0.5, **sizes)
    theirs = transformers.BertForMaskedLM(config)
    tokenizer.add_tokens(["NewTok"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["[ENT]"]})
    theirs.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=64)
    with torch.no_grad():
        theirs.cls.predictions.bias[len(tokenizer) :] = 50.0  # of rows without a token
    theirs.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with tiny.few_devices(1):
        assert set(check(folder)["tokens"]) < set(open_weights(folder).tokenizer(True).vocab)
        text = tiny.write_text(tmp_path / "text.txt", documents=20)
        keys = {"init_from": folder, "data.source": text, "data.next_sentence": False, **added}
        keys |= {"data.seq_len": 16, "masking.max_predictions": 4, "batch_size": 8, "optimizer.schedule_steps": 2}
        keys |= {"data.lines": "sentence", "data.valid_fraction": 0.2}
        command = ["--config=configs/bert_pretraining.py", f"--workdir={tmp_path / 'run'}", *flags(keys)]
        done(*command, "--config.num_steps=1")
        moved = shutil.move(folder, tmp_path / "moved")
        done(*command, "--config.num_steps=2")  # resumes
        bertjax.load(tmp_path / "run").export(tmp_path / "exported")
        check(tmp_path / "exported")
        kept = [each for each in command if "init_from" not in each and "workdir" not in each]
        again = [*kept, f"--workdir={tmp_path / 'next'}", f"--config.init_from={tmp_path / 'run'}"]
        outcome = tiny.run_on_one(*again, "--config.num_steps=1")
    known = len(tokenizer)
    vocab = open_weights(tmp_path / "run").tokenizer(True).vocab
    if "data.add_tokens" in added:
        assert vocab[known:] == ("x9",) and "'x9', which the vocabulary has already" in outcome.error
    else:
        assert outcome.status is None, outcome.status
        assert len(vocab) == known + 2 and {*vocab[known:]} < {*tiny.WORDS}
        assert open_weights(tmp_path / "next").tokenizer(True).vocab_size == known + 4  # the next two words
    assert open_weights(moved).tokenizer(True).vocab_size == known
