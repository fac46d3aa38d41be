"""Losses of vectors compared with those of sentence-transformers (slow)."""

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.embedding_losses import LossConfig, Texts, total

pytestmark = pytest.mark.slow


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
