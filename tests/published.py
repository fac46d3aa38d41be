"""Small published model folders for tests, in the formats of Hugging Face, sentence-transformers and Google."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.data.text.wordpiece import SPECIALS, WordPiece
from bertjax.interop import huggingface
from bertjax.models.bert import Bert, BertInputs, HeadConfig
from tests.random_params import random_params

# A whole folder, written by TensorFlow.
GOOGLE = Path(__file__).parent / "interop" / "golden" / "uncased_L-2_H-8_A-2"
TOKENIZER = WordPiece([*SPECIALS, ".", "the", "cat", "dog", "sees", "##s", "##y", "##ing", "bird"], lowercase=True)
_SIZES = {"num_layers": 4, "hidden_size": 16, "num_heads": 2, "intermediate_size": 24, "max_positions": 32}
CONFIG = HeadConfig(
    **_SIZES,
    vocab_size=TOKENIZER.vocab_size,
    dropout=0.1,
    attention_dropout=0.1,
    activation="gelu",
    norm_eps=1e-12,
    initializer_range=0.5,
)


@functools.cache
def params(config: HeadConfig = CONFIG) -> Any:
    """The parameters of `Bert` in the folders."""
    ids = np.zeros((1, 1), np.int32)
    init = functools.partial(Bert(config, pooler_activation="tanh").init, deterministic=True, return_attention=False)
    return random_params(init, BertInputs(ids, ids, ids), scale=0.5)["params"]


def write_huggingface(folder: Path, config: HeadConfig = CONFIG) -> Path:
    """Writes and returns a folder for transformers' BertModel."""
    huggingface.save(folder, params(config), config, "BertModel")
    TOKENIZER.save(folder)
    return folder


def write_sentence_transformers(folder: Path, pooling: str, normalize: bool, max_seq_length: int) -> Path:
    """Writes and returns a folder for sentence-transformers; `pooling` is its pooling mode, such as "mean_tokens"."""
    write_huggingface(folder)
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
    types = [f"sentence_transformers.models.{kind}" for kind in kinds]
    modules = [{"idx": i, "path": path, "type": kind} for i, (path, kind) in enumerate(zip(paths, types, strict=True))]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_seq_length}))
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "max_tokens")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 16, **modes}))
    return folder
