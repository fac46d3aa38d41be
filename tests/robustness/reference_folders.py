"""Small random folders that sentence-transformers and transformers write with all options set."""

import json
from pathlib import Path
from typing import Any

import sentence_transformers
import torch
import transformers
from sentence_transformers.sentence_transformer import modules

from tests import published
from tests.interop import test_marian

PROMPTS = {"query": "the ", "of cats": "cat "}


def write_bi_encoder(folder: Path) -> Path:
    """Writes and returns a SentenceTransformer with every supported module."""
    torch.manual_seed(0)
    transformer = _transformer(folder)
    pooling = modules.Pooling(16, pooling_mode=("mean", "cls"), include_prompt=False)
    model = sentence_transformers.SentenceTransformer(
        modules=[transformer, pooling, modules.Dense(32, 8), modules.Normalize()],
        prompts=PROMPTS,
        default_prompt_name="of cats",
        similarity_fn_name="dot",
        truncate_dim=5,
        device="cpu",
    )
    model.save(str(folder), create_model_card=False)
    return folder


def write_cross_encoder(folder: Path) -> Path:
    """Writes and returns a CrossEncoder of one output."""
    torch.manual_seed(0)
    base = _write_base(folder)
    model = sentence_transformers.CrossEncoder(
        str(base),
        num_labels=1,
        prompts=PROMPTS,
        default_prompt_name="of cats",
        activation_fn=torch.nn.Identity(),
        keep_in_fp32_modules=["0.model.classifier"],
        device="cpu",
    )
    model.save(str(folder), create_model_card=False)
    return folder


def write_marian(folder: Path) -> Path:
    """Writes and returns a MarianMTModel with its tokenizer."""
    torch.manual_seed(0)
    folder.mkdir()
    test_marian.write_vocabularies(folder)
    ids = json.loads((folder / "vocab.json").read_text())
    pad = ids["<pad>"]
    special: dict[str, Any] = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0}
    sizes = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in _SIZES.items()}
    config = transformers.MarianConfig(
        vocab_size=len(ids), d_model=16, max_position_embeddings=32, init_std=0.5, **sizes, **special
    )
    model = transformers.MarianMTModel(config)
    decoding: dict[str, Any] = {
        "max_length": 14,
        "min_length": 3,
        "num_beams": 3,
        "length_penalty": 0.7,
        "early_stopping": True,
        "no_repeat_ngram_size": 3,
        "bad_words_ids": [[pad], [5], [pad, 7], [8, 9, 10]],
        "forced_eos_token_id": 0,
        "renormalize_logits": True,
    }
    model.generation_config = transformers.GenerationConfig(**decoding, **special)
    model.save_pretrained(folder)
    transformers.MarianTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


_SIZES = {"layers": 1, "attention_heads": 2, "ffn_dim": 24}


def _write_base(folder: Path) -> Path:
    """Writes and returns an encoder whose tokenizer truncates rows at their start."""
    base = published.write_huggingface(folder.with_name(f"{folder.name}-base"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(base, truncation_side="left", model_max_length=12)
    tokenizer.save_pretrained(base)
    return base


def _transformer(folder: Path) -> Any:
    return modules.Transformer(str(_write_base(folder)))
