"""Teachers of other families: their hidden states are those of transformers."""

import jax
import numpy as np
import pytest
import torch
import transformers

from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.training import loop
from tests import tiny
from tests.experiments.commands import NO_DROPOUT, sizes, tree_of

pytestmark = pytest.mark.slow

TOKENIZER = WordPiece([*SPECIALS, ".", *tiny.WORDS], lowercase=True)
IDS = {"pad_token_id": 0, **dict.fromkeys(("cls_token_id", "bos_token_id"), TOKENIZER.cls_id)}
IDS |= dict.fromkeys(("sep_token_id", "eos_token_id"), TOKENIZER.sep_id)
SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 4, "intermediate_size": 40}
DISENTANGLED = {"relative_attention": True, "share_att_key": True, "position_buckets": 8, "type_vocab_size": 0}
DISENTANGLED |= {"norm_rel_ebd": "layer_norm", "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
FAMILIES = {
    "ModernBert": {"local_attention": 8, "global_attn_every_n_layers": 2},
    "DebertaV2": DISENTANGLED,
    "XLMRoberta": {"type_vocab_size": 1},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_bert_of_another_width_learns_from_any_family(tmp_path, name):
    torch.manual_seed(0)
    values = {**SIZES, **FAMILIES[name], **IDS, "vocab_size": TOKENIZER.vocab_size, "max_position_embeddings": 64}
    config = getattr(transformers, f"{name}Config")(**values)
    model = getattr(transformers, f"{name}ForMaskedLM")(config).eval()
    model.save_pretrained(tmp_path / "teacher")
    TOKENIZER.save(tmp_path / "teacher")
    keys = {
        **sizes(2, 16, 4, 24, 24),
        **NO_DROPOUT,
        **{f"distillation.{term}": 1.0 for term in ("logits", "hidden", "embeddings", "relations", "cosine")},
        **{"distillation.relation_heads": 2, "teacher": str(tmp_path / "teacher")},
        **{"data.seq_len": 24, "data.stages": (), "data.packing": False, "data.workers": 1, "data.lines": "sentence"},
        **{"data.source": str(tiny.write_text(tmp_path / "text.txt")), "data.valid_fraction": 0.2, "batch_size": 8},
        "data.next_sentence": False,
    }
    ready = tiny.ready(tree_of("bert_pretraining", "tiny", keys), tmp_path / "data")
    trainer = loop.Trainer(ready.task, ready.settings, jax.devices()[:1])
    batch = trainer.with_teacher_outputs(trainer.put(next(ready.data.batches("train", 0, np.arange(8)))))
    is_token = np.asarray(batch["segment_ids"]) != 0
    ids, mask = (torch.tensor(np.asarray(each)) for each in (batch["input_ids"], is_token.astype(np.int64)))
    with torch.no_grad():
        outputs = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    states = np.stack([outputs.hidden_states[layer].numpy() for layer in (2, 4)], axis=1)
    hidden = np.asarray(batch["teacher_hidden_states"])[:, 0]
    np.testing.assert_allclose(hidden.swapaxes(1, 2)[is_token], states.swapaxes(1, 2)[is_token], atol=2e-5)
    positions = np.asarray(batch["masked_positions"])
    logits = np.take_along_axis(outputs.logits.numpy(), positions[..., None], axis=1)
    has_label = np.asarray(batch["teacher_weights"]) > 0
    np.testing.assert_allclose(np.asarray(batch["teacher_logits"])[has_label], logits[has_label], atol=2e-5)
    sums, _ = jax.jit(lambda params: ready.task.loss(params, batch, None))(trainer.fresh().params)
    assert all(np.isfinite(total) and total > 0 for total in sums.values())
