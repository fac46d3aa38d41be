"""Published encoders continue as masked diffusion models, which transformers opens as its masked language models."""

import numpy as np
import pytest

import bertjax
from tests import tiny
from tests.experiments.commands import done, flags
from tests.parity.test_model_cards import TEXT, write_encoder

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_published_encoder_continues_as_a_diffusion_model(family, tmp_path):
    transformers = pytest.importorskip("transformers")
    write_encoder(family, "words")(tmp_path / "theirs")
    values = {
        "init_from": tmp_path / "theirs",
        "data.source": tiny.write_text(tmp_path / "t.txt"),
        "data.lines": "sentence",
        "data.valid_fraction": 0.2,
        "data.seq_len": 16,
        "data.packing": True,
        "batch_size": 8,
        "num_steps": 3,
        "optimizer.warmup_steps": 1,
        "evaluate_every": 3,
        "checkpoint.save_every": 3,
    }
    outcome = done("--config=configs/bert_pretraining.py:diffusion", f"--workdir={tmp_path / 'run'}", *flags(values))
    assert "reads all positions" not in outcome.stderr
    done("--mode=export", f"--workdir={tmp_path / 'run'}", f"--output={tmp_path / 'ours'}")
    pipeline = transformers.pipeline("fill-mask", str(tmp_path / "ours"))
    text = TEXT.replace(".", f" {pipeline.tokenizer.mask_token}.")
    with tiny.few_devices(1):
        (record,) = bertjax.load(tmp_path / "run").predict([text])
    theirs = [output["score"] for output in pipeline(text)]
    np.testing.assert_allclose(record["masks"][0]["probabilities"], theirs, atol=2e-6)
