"""Makes golden/ with transformers: small BERT models, their weights, outputs and gradients.

Usage: python -m tests.parity.make_golden
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

GOLDEN = Path(__file__).with_name("golden")

# Odd sizes, so that no two axes can be confused; the first is the closest to the published models.
CASES = {
    "erf": {
        "vocab_size": 61,
        "hidden_size": 36,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 50,
        "max_position_embeddings": 15,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
    },
    "tanh": {
        "vocab_size": 47,
        "hidden_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 40,
        "max_position_embeddings": 13,
        "type_vocab_size": 2,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-12,
    },
    "deep": {
        "vocab_size": 40,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 22,
        "max_position_embeddings": 20,
        "type_vocab_size": 3,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-6,
    },
}


def make_model(case: dict, seed: int) -> transformers.BertForPreTraining:
    """Returns a model in which no bias is 0, no norm is 1 and no attention is uniform."""
    config = transformers.BertConfig(**case, attn_implementation="eager")
    model = transformers.BertForPreTraining(config).eval()
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.from_numpy(rng.standard_normal(parameter.shape, np.float32))
            parameter.copy_(0.2 * noise + (1.0 if name.endswith("LayerNorm.weight") else 0.0))
    return model


def make_batch(case: dict, seed: int, rows: int = 3, length: int = 13, masked: int = 3) -> dict:
    """Returns two-segment rows of decreasing length, with three words each to predict, and a pair label."""
    rng = np.random.default_rng(seed)
    lengths = length - 2 * np.arange(rows)
    position = np.arange(length)
    real = position < lengths[:, None]
    return {
        "input_ids": np.where(real, rng.integers(5, case["vocab_size"], (rows, length)), 0),
        "token_type_ids": (position >= lengths[:, None] // 2) & real,
        "attention_mask": real,
        "masked_positions": np.stack([rng.choice(np.arange(1, n), masked, False) for n in lengths]),
        "masked_labels": rng.integers(5, case["vocab_size"], (rows, masked)),
        "next_sentence_labels": rng.integers(0, 2, rows),
    }


def run(model: transformers.BertForPreTraining, batch: dict) -> tuple[dict, dict]:
    """Returns the outputs at every position with the loss, and the gradient of the loss by name."""
    model.zero_grad()
    labels = np.full(batch["input_ids"].shape, -100)
    np.put_along_axis(labels, batch["masked_positions"], batch["masked_labels"], axis=1)
    inputs = {name: torch.tensor(batch[name]).long() for name in ("input_ids", "token_type_ids")}
    inputs["attention_mask"] = torch.tensor(batch["attention_mask"]).long()
    output = model(
        **inputs,
        labels=torch.tensor(labels),
        next_sentence_label=torch.tensor(batch["next_sentence_labels"]),
        output_attentions=True,
    )
    output.loss.backward()
    with torch.no_grad():
        pooled = model.bert(**inputs).pooler_output
    expected = {
        "masked_lm_logits": output.prediction_logits,
        "next_sentence_logits": output.seq_relationship_logits,
        "pooled": pooled,
        "attention": torch.stack(output.attentions),
        "loss": output.loss,
    }
    gradient = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: value.detach().numpy() for name, value in expected.items()}, gradient


def write(folder: Path, case: dict, seed: int) -> None:
    """Writes one case: `save_pretrained` weights, gradients under the same names, batch and outputs."""
    model, batch = make_model(case, seed), make_batch(case, seed)
    expected, gradient = run(model, batch)
    model.save_pretrained(folder)
    (folder / "gradient").mkdir(exist_ok=True)
    save_file(gradient, folder / "gradient" / "model.safetensors")
    integers = {name: value.astype(np.int32) for name, value in batch.items()}
    np.savez_compressed(folder / "batch.npz", **integers)
    np.savez_compressed(folder / "expected.npz", **expected)


def main() -> None:
    """Writes all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=GOLDEN)
    output = parser.parse_args().output
    for seed, (name, case) in enumerate(CASES.items()):
        write(output / f"bert_{name}", case, seed)


if __name__ == "__main__":
    main()
