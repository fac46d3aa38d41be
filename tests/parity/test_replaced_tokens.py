"""Losses of replaced-token detection, compared with transformers on the same samples."""

import jax
import numpy as np
import pytest

from tests.experiments.test_replaced_tokens import made
from tests.random_params import random_params


@pytest.mark.slow
@pytest.mark.parametrize("embeddings", ["shared", "disentangled"])
def test_losses_of_generator_and_discriminator(tmp_path, embeddings):
    import torch
    import transformers

    task, _, batch = made(tmp_path, **{"generator.embeddings": embeddings, "model.embedding_size": 12})
    params = random_params(task.init)
    task.export(params, tmp_path / "exported")
    sums, _ = jax.jit(lambda *arguments: task.loss(*arguments, None))(params, batch)
    read = {name: np.asarray(array) for name, array in jax.jit(task.infer)(params, batch).items()}
    counts = task.denominators(batch)

    def loss(kind, folder, ids, labels):
        model = getattr(transformers, kind).from_pretrained(folder).eval()
        fields = {"input_ids": ids, "token_type_ids": batch["token_type_ids"], "labels": labels}
        fields["attention_mask"] = batch["segment_ids"]
        tensors = {name: torch.tensor(np.array(each)).long() for name, each in fields.items()}
        return float(model(**tensors).loss.detach())

    masked, rows = batch["masked_weights"] > 0, np.arange(len(batch["input_ids"]))[:, None]
    labels = np.full_like(batch["input_ids"], -100)
    places = np.broadcast_to(rows, masked.shape)[masked], batch["masked_positions"][masked]
    labels[places] = batch["masked_labels"][masked]
    words = loss("ElectraForMaskedLM", tmp_path / "exported" / "generator", batch["input_ids"], labels)
    replaced = loss("ElectraForPreTraining", tmp_path / "exported", read["input_ids"], read["is_replaced"])
    assert float(sums["masked_lm"] / counts["masked_lm"]) == pytest.approx(words, rel=2e-6)
    assert float(sums["replaced"] / counts["replaced"]) == pytest.approx(50 * replaced, rel=2e-6)
