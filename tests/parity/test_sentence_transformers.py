"""Vectors of texts from folders of sentence-transformers, and losses of vectors, compared with theirs (slow)."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.interop import huggingface
from bertjax.models.embedding_losses import LossConfig, Texts, total
from tests import tiny
from tests.parity.test_families import PLAIN, their_model, write_tokenizer

pytestmark = pytest.mark.slow

TEXTS = [*PLAIN, "rain", " ".join(PLAIN * 2)]  # the last is truncated
LENGTH = 32


def pooled(mode, states, mask):
    import torch

    mask = mask[..., None].to(states.dtype)
    last = mask.sum(1).long() - 1
    weights = mask * torch.arange(1, states.shape[1] + 1)[:, None]
    return {
        "cls": lambda: states[:, 0],
        "max": lambda: states.masked_fill(mask == 0, -torch.inf).amax(1),
        "mean": lambda: (states * mask).sum(1) / mask.sum(1),
        "mean_sqrt_len_tokens": lambda: (states * mask).sum(1) / mask.sum(1).sqrt(),
        "weightedmean": lambda: (states * weights).sum(1) / weights.sum(1),
        "lasttoken": lambda: states.take_along_dim(last[..., None], 1)[:, 0],
    }[mode]()


@pytest.mark.parametrize(
    ("name", "modes", "activations", "normalizes"),
    [
        ("bert", ["max", "cls"], ["activation.Tanh", "linear.Identity"], False),
        ("distilbert", ["weightedmean"], ["activation.ReLU"], True),
        ("modernbert", ["lasttoken", "mean_sqrt_len_tokens"], ["activation.SiLU"], False),
        ("mpnet", ["mean"], [], True),
        ("xlm-roberta of two token types", ["mean", "lasttoken"], ["activation.GELU"], True),
    ],
)
def test_vectors_of_texts(name, modes, activations, normalizes, tmp_path):
    import torch

    tokenizer = write_tokenizer(tmp_path)
    ids = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("pad", "cls", "sep")}
    model = their_model(name, "model", vocab_size=len(tokenizer), **ids)
    model.save_pretrained(tmp_path)
    encoded = tokenizer(TEXTS, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
    with torch.no_grad():
        states = model(**encoded).last_hidden_state
        x = torch.cat([pooled(mode, states, encoded["attention_mask"]) for mode in modes], 1)
        for number, activation in enumerate(activations):
            dense = torch.nn.Linear(x.shape[1], 7 + number, bias=number == 0)
            path, kind = tmp_path / f"{number + 2}_Dense", f"torch.nn.modules.{activation}"
            path.mkdir()
            tensors = {f"linear.{key}": each for key, each in dense.state_dict().items()}
            torch.save(tensors, path / "pytorch_model.bin")
            values = {"in_features": x.shape[1], "out_features": 7 + number, "bias": number == 0}
            (path / "config.json").write_text(json.dumps({**values, "activation_function": kind}))
            x = getattr(torch.nn, activation.split(".")[1])()(dense(x))
        x = torch.nn.functional.normalize(x) if normalizes else x
    kinds = ["Transformer", "Pooling", *["Dense"] * len(activations), *["Normalize"] * normalizes]
    modules = [
        {"path": f"{i}_{kind}" * bool(i), "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    huggingface.write_json(tmp_path / "modules.json", modules)
    (tmp_path / "1_Pooling").mkdir()
    huggingface.write_json(tmp_path / "1_Pooling" / "config.json", {"pooling_mode": modes})
    huggingface.write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": LENGTH})
    with tiny.few_devices(1):
        found = bertjax.load(tmp_path).encode(TEXTS)
    np.testing.assert_allclose(found, x.numpy(), atol=2e-5)


class _Vectors:
    """A model whose vectors of texts are given."""

    def __new__(cls, vectors):
        from torch import nn

        module = nn.Identity()
        module.forward = lambda features: {"sentence_embedding": features}
        module.get_embedding_dimension = module.get_sentence_embedding_dimension = lambda: vectors[0].shape[-1]
        return module


@pytest.mark.parametrize("sizes", [(), (8, 3)])
@pytest.mark.parametrize(
    ("name", "theirs", "num_texts"),
    [
        ("ranking", "MultipleNegativesRankingLoss", 4),
        ("cosine", "CosineSimilarityLoss", 2),
        ("cosent", "CoSENTLoss", 2),
        ("triplet", "TripletLoss", 3),
        ("margin", "MarginMSELoss", 4),
    ],
)
def test_losses(name, theirs, num_texts, sizes):
    import torch
    from sentence_transformers.sentence_transformer import losses

    rng, count = np.random.default_rng(0), 6
    x = rng.standard_normal((count, num_texts, 8)).astype(np.float32)
    scores = rng.random((count, {"cosine": 1, "cosent": 1, "margin": 3}.get(name, 0))).astype(np.float32)
    numbers = np.arange(count * num_texts).reshape(count, num_texts)
    texts = Texts(np.ones_like(numbers, bool), numbers, scores, np.ones(count, np.float32))
    found = total(name, jnp.asarray(x), texts, jnp.float32(20), LossConfig(), sizes[1:])
    columns = [torch.tensor(x[:, number]) for number in range(num_texts)]
    model = _Vectors(columns)
    loss = getattr(losses, theirs)(model, **({"scale": 20.0} if name in ("ranking", "cosent") else {}))
    loss = losses.MatryoshkaLoss(model, loss, list(sizes)) if sizes else loss
    labels = torch.tensor(scores.squeeze(1) if scores.shape[1] == 1 else scores)
    np.testing.assert_allclose(float(found), float(loss(columns, labels)), rtol=1e-5)
