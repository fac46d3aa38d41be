"""Speed of fine-tuning an encoder-decoder compared with transformers on PyTorch, interleaved, on a CPU.

    python -m benchmarks.seq2seq_step --rounds=5 [--size=t5-small]

Both train the same model on the same rows, full of random tokens, with dropout and AdamW (theirs fused) in float32.
"""

import argparse
import functools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import common
from benchmarks.common import Speed
from benchmarks.decoding import SIZES, load, save_model
from bertjax.tasks import seq2seq

_RATE = 5e-5


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = common.parser(__doc__ or "", rounds=5)
    parser.add_argument("--size", choices=tuple(SIZES), default="bart-base")
    parser.add_argument("--vocab_size", type=int, default=32_000)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--source", type=int, default=256, help="tokens of a source")
    parser.add_argument("--target", type=int, default=64, help="tokens of a target")
    args = parser.parse_args()
    if args.smoke:
        args.size = "tiny"
        args.vocab_size = 1000
        args.source = 16
        args.target = 8
    common.report(measure, args)


def measure(args: argparse.Namespace) -> Iterator[Speed]:
    """Yields our speed compared with that of transformers."""
    random = np.random.default_rng(0)
    source = random.integers(1, args.vocab_size - 1, (args.rows, args.source))
    target = random.integers(1, args.vocab_size - 1, (args.rows, args.target))
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), *SIZES[args.size], args.vocab_size)
        steps = {"ours": ours(Path(folder), source, target), "transformers": theirs(folder, source, target)}
    losses = {name: step() for name, step in steps.items()}
    print(f"first losses, which differ by dropout: {losses}", flush=True)
    seconds = common.interleave(steps, args.rounds)
    yield common.speed_of(f"fine-tuning, {args.size}", "target tokens/s", target.size, seconds)


def ours(folder: Path, source: np.ndarray, target: np.ndarray) -> Any:
    """Returns a function that makes an update and returns the loss."""
    model, params, raw = load(folder)
    optimizer = optax.adamw(_RATE)
    fields = {"input_ids": source, "labels": target}
    fields |= {"segment_ids": np.ones_like(source), "target_segment_ids": np.ones_like(target)}
    batch = {name: jnp.asarray(field, jnp.int32) for name, field in fields.items()}
    smoothing = seq2seq.SmoothingConfig(label_smoothing=0.0, smoothing_denominator="V")
    start = raw["decoder_start_token_id"]

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, state: Any, key: Any) -> Any:
        def loss(params: Any) -> Any:
            logits = seq2seq.apply(model, params, batch, start, key, return_attention=False).logits
            return seq2seq.loss(logits, batch, smoothing, start)[0] / target.size

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    held = [params, optimizer.init(params)]
    keys = iter(jax.random.split(jax.random.key(0), 10_000))

    def update() -> float:
        held[0], held[1], value = step(*held, next(keys))
        return float(value)

    return update


def theirs(folder: str, source: np.ndarray, target: np.ndarray) -> Any:
    """Returns a function that makes an update and returns the loss."""
    import torch
    import transformers

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).train()
    optimizer = torch.optim.AdamW(model.parameters(), _RATE, fused=True)
    input_ids = torch.tensor(source)
    labels = torch.tensor(target)

    def update() -> float:
        loss = model(input_ids=input_ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return update


if __name__ == "__main__":
    main()
