"""Values of model configs that contradict each other; `tests/test_errors.py` has the constraints of single values."""

import dataclasses

import pytest

from bertjax.config import build
from bertjax.errors import UserError
from bertjax.models.transformer_config import TransformerConfig
from tests.models import test_encoder_decoder, test_heads, test_modern, test_recurrent_seq2seq, test_transformer

BERT, TRANSFORMER, MODERN = test_heads.CONFIG, test_transformer.CONFIG, test_modern.MODERN
SEQ2SEQ, RECURRENT = test_encoder_decoder.CONFIG, test_recurrent_seq2seq.CONFIG
ABLE = {"attention_backend": "cudnn", "dtype": "bfloat16", "hidden_size": 16}  # with two heads of 8


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (TRANSFORMER, {"hidden_size": 13}, "hidden_size: got 13; expected a multiple of num_heads=2"),
        (TRANSFORMER, {**ABLE, "attention_dropout": 0.1}, "attention_dropout: got 0.1; expected 0 with"),
        (TRANSFORMER, {**ABLE, "dtype": "float32"}, "dtype: got 'float32'; expected bfloat16 with"),
        (TRANSFORMER, {**ABLE, "hidden_size": 12}, "num_heads: got 2; expected heads of 8, 16, ... 128 with model"),
        (TRANSFORMER, {"attention_backend": "splash", "attention_dropout": 0.1}, "attention_dropout: got 0.1"),
        (MODERN, {"hidden_size": 27}, "positions: got 'rotary'; expected not rotary with heads of 9"),
        (BERT, {"hidden_size": 27, "positions": "sinusoidal"}, "positions: got 'sinusoidal'"),
        (BERT, {"relative_positions": "bucketed", "relative_distance": 8}, "relative_distance: got 8; expected above"),
        (BERT, {"relative_positions": "bucketed", "attention_backend": "splash"}, "relative_positions: got 'bucketed'"),
        (
            BERT,
            {"relative_positions": "disentangled", "relative_buckets": 80, "relative_distance": 39},
            "relative_buckets: got 80; expected at most 78",
        ),
        (MODERN, {"relative_positions": "disentangled"}, "relative_positions: got 'disentangled'; expected another"),
        (BERT, {"convolution_size": 2}, "convolution_size: got 2; expected 0 or an odd number"),
        (BERT, {"local_attention": 1}, "local_attention: got 1; expected 0, or at least 2"),
        (BERT, {"first_attention_norm": False}, "first_attention_norm: got False; expected True with model.norm=post"),
        (MODERN, {"pooling": "late"}, "pooling: got 'late'; expected cls or mean with model.head=transform"),
        (BERT, {"masked_lm_head": "linear"}, "masked_lm_head: got 'linear'; expected transform, unless"),
        (BERT, {"num_key_value_heads": 2}, "num_key_value_heads: got 2; expected 0, or a divisor of num_heads=3"),
        (SEQ2SEQ, {"share_embeddings": True}, "target_vocab_size: got 13; expected model.source_vocab_size=11 with"),
        (SEQ2SEQ, {**ABLE, "key_size": 16}, "key_size: got 16; expected 0 with model.attention_backend=cudnn"),
        (SEQ2SEQ, {"hidden_size": 9, "num_heads": 3}, "hidden_size: got 9; expected an even number"),
        (RECURRENT, {"hidden_size": 7}, "hidden_size: got 7; expected an even number"),
    ],
)
def test_values_that_contradict_each_other(config, values, message):
    with pytest.raises(UserError) as caught:
        dataclasses.replace(config, **values)
    assert f"config key model.{message}" in str(caught.value)


@pytest.mark.parametrize(("earlier", "present"), [(False, "none"), (True, "full"), ("true", "full"), ("dots", "dots")])
def test_configs_of_earlier_versions(earlier, present):
    values = {**dataclasses.asdict(TRANSFORMER), "remat": earlier}
    assert build(TransformerConfig, values, "model").remat == present
