"""Small folders of families without mathematics of their own, compared with transformers in both directions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import build
from bertjax.interop import families, huggingface
from bertjax.interop.published import open_weights
from bertjax.models.bert import Bert, BertForPreTraining, BertInputs, HeadConfig
from bertjax.models.heads import BertForQuestionAnswering, BertForSequenceClassification, BertForTokenClassification

pytestmark = pytest.mark.slow

VOCAB, CLASSES = 61, 5
SIZES = {"vocab_size": VOCAB, "max_position_embeddings": 20}
CONFIGS = {
    "distilbert": {"dim": 24, "n_heads": 3, "n_layers": 2, "hidden_dim": 28, "activation": "gelu"},
}
CLASSES_OF = {
    "model": "BertModel",
    "words": "BertForMaskedLM",
    "classes": "BertForSequenceClassification",
    "tokens": "BertForTokenClassification",
    "spans": "BertForQuestionAnswering",
}
IDS = np.random.default_rng(3).integers(5, VOCAB, (2, 9))
IDS[1, 6:] = 0
MASK = (IDS != 0).astype(np.int32)


def our_model(head, config):
    return {
        "model": lambda: Bert(config),
        "words": lambda: BertForPreTraining(config, predicts_next=False),
        "classes": lambda: BertForSequenceClassification(config, CLASSES, 0.1, 0),
        "tokens": lambda: BertForTokenClassification(config, CLASSES, 0.1, 0),
        "spans": lambda: BertForQuestionAnswering(config, 0),
    }[head]()


def call(head, config, method, *variables):
    """Calls a method of our model, "init" or "apply"."""
    ids, options = jnp.asarray(IDS), {"deterministic": True}
    inputs = (BertInputs(ids, jnp.zeros_like(ids), jnp.asarray(MASK)),)
    if head == "words":
        inputs += (jnp.broadcast_to(jnp.arange(IDS.shape[1]), IDS.shape),)
    if head in ("model", "words"):
        options["return_attention"] = False
    return getattr(our_model(head, config), method)(*variables, *inputs, **options)


def our_output(folder, head):
    weights = open_weights(folder)
    config = build(HeadConfig, {"dropout": 0.0, "attention_dropout": 0.0, **weights.fields}, "model")
    shapes = jax.eval_shape(lambda: call(head, config, "init", jax.random.key(0)))["params"]
    params, missing = weights.load(shapes)
    assert not missing
    output = call(head, config, "apply", {"params": params})
    found = {"model": lambda: output.hidden, "words": lambda: output.masked_lm_logits}
    found |= {"spans": lambda: jnp.stack(output, -1)}
    return config, params, np.asarray(found.get(head, lambda: output)())


def their_output(model):
    import torch

    with torch.no_grad():
        output = model(torch.tensor(IDS), attention_mask=torch.tensor(MASK))
    spans = ("start_logits", "end_logits")
    return (torch.stack([output[key] for key in spans], -1) if spans[0] in output else output[0]).numpy()


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("head", CLASSES_OF)
def test_a_folder_in_both_directions(family, head, tmp_path):
    import torch
    import transformers

    torch.manual_seed(0)
    labels = {"num_labels": CLASSES} if head in ("classes", "tokens") else {}
    config = transformers.AutoConfig.for_model(family, **SIZES, **CONFIGS[family], **labels)
    name = families.find(family).class_name(CLASSES_OF[head])
    model = getattr(transformers, name)(config).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.2)
    model.save_pretrained(tmp_path / "theirs")
    ours, params, output = our_output(tmp_path / "theirs", head)
    real = MASK.astype(bool) if output.ndim == 3 else slice(None)
    np.testing.assert_allclose(output[real], their_output(model)[real], atol=2e-5)
    huggingface.save(tmp_path / "ours", params, ours, CLASSES_OF[head], family=family)
    again, info = getattr(transformers, name).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    np.testing.assert_allclose(their_output(again.eval())[real], their_output(model)[real], atol=1e-6)
    same = config.to_dict().keys() - {"_name_or_path", "architectures", "dtype", "problem_type"}
    assert {key: again.config.to_dict()[key] for key in same} == {key: config.to_dict()[key] for key in same}
