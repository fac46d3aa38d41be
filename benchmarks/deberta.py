"""Time and memory of DeBERTa-v3's encoder on a CPU, forward and backward, compared with transformers.

    python -m benchmarks.deberta --rows=4 --layers=4 --rounds=7

Both have float32 random weights of Base's width, the same threads and dropout, and rows without padding. Each runs in a
process of its own, in turns. Memory is the largest resident memory of the process minus that before the first call,
which is also the compilation of ours.
"""

import argparse
import multiprocessing
import multiprocessing.connection
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks import common

_VOCABULARY = 1000  # a larger one adds the same gradient to both


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dropout", type=float, default=0.1)
    args = parser.parse_args()
    print(f"{common.describe_machine()}; float32; {args.rounds} rounds", flush=True)
    workers = {"bertjax": _Worker(_our_call, args), "transformers": _Worker(_their_call, args)}
    calls: dict[str, list[tuple[float, float]]] = {name: [] for name in workers}
    for _ in range(args.rounds):
        for name, worker in workers.items():
            calls[name].append(worker.call())
    rows = []
    for name, worker in workers.items():
        wall, used = zip(*calls[name], strict=True)
        rows.append([name, common.spread(wall, 2), common.spread(used, 2), f"{worker.end() / 2**30:.2f}"])
    print(common.table(["encoder", "seconds", "CPU seconds", "peak memory, GiB"], rows))
    for number, what in enumerate(("time", "CPU time")):
        pairs = zip(calls["transformers"], calls["bertjax"], strict=True)
        print(f"{what} of transformers / ours: {common.spread([a[number] / b[number] for a, b in pairs], 2)}")
    print(f"Load average at the end {common.load_average()}")


class _Worker:
    """A process that makes calls on request."""

    def __init__(self, make: Callable[[argparse.Namespace], Callable[[], None]], args: argparse.Namespace) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_work, args=(make, args, other))
        self._process.start()
        self._pipe.recv()

    def call(self) -> tuple[float, float]:
        """Makes a call. Returns its seconds and CPU seconds."""
        self._pipe.send(True)
        seconds: tuple[float, float] = self._pipe.recv()
        return seconds

    def end(self) -> int:
        """Ends the process. Returns the bytes of memory of its calls."""
        self._pipe.send(False)
        used: int = self._pipe.recv()
        self._process.join()
        return used


def _work(
    make: Callable[[argparse.Namespace], Callable[[], None]],
    args: argparse.Namespace,
    pipe: multiprocessing.connection.Connection,
) -> None:
    call = make(args)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    loaded = pages * os.sysconf("SC_PAGE_SIZE")
    call()
    pipe.send(None)
    while pipe.recv():
        began, used = time.perf_counter(), time.process_time()
        call()
        pipe.send((time.perf_counter() - began, time.process_time() - used))
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - loaded)


def _ids(args: argparse.Namespace) -> np.ndarray:
    return np.random.default_rng(0).integers(1, _VOCABULARY, (args.rows, args.length))


def _our_call(args: argparse.Namespace) -> Callable[[], None]:
    import jax
    import jax.numpy as jnp

    from bertjax.models.bert import Bert, BertConfig, BertInputs

    config = BertConfig(
        vocab_size=_VOCABULARY,
        hidden_size=768,
        num_layers=args.layers,
        num_heads=12,
        intermediate_size=3072,
        max_positions=args.length,
        type_vocab_size=0,
        positions="none",
        relative_positions="disentangled",
        relative_buckets=512,
        relative_distance=512,
        relative_norm=True,
        dropout=args.dropout,
        attention_dropout=args.dropout,
        activation="gelu",
        norm_eps=1e-7,
    )
    bert, ids = Bert(config), jnp.asarray(_ids(args))
    inputs = BertInputs(ids, jnp.zeros_like(ids), jnp.ones_like(ids))
    key = jax.random.key(0)
    params = jax.jit(lambda: bert.init(key, inputs, deterministic=True, return_attention=False))()

    @jax.jit
    def gradient(params: jax.Array, key: jax.Array) -> jax.Array:
        def loss(params: jax.Array) -> jax.Array:
            options = {"deterministic": not args.dropout, "return_attention": False}
            return jnp.mean(bert.apply(params, inputs, rngs={"dropout": key}, **options).hidden ** 2)

        return jax.grad(loss)(params)

    jax.block_until_ready(params)
    return lambda: jax.block_until_ready(gradient(params, key)) and None


def _their_call(args: argparse.Namespace) -> Callable[[], None]:
    import torch
    import transformers

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    config = transformers.DebertaV2Config(
        vocab_size=_VOCABULARY,
        hidden_size=768,
        num_hidden_layers=args.layers,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=args.length,
        position_biased_input=False,
        relative_attention=True,
        share_att_key=True,
        position_buckets=256,
        max_relative_positions=512,
        norm_rel_ebd="layer_norm",
        pos_att_type="p2c|c2p",
        hidden_dropout_prob=args.dropout,
        attention_probs_dropout_prob=args.dropout,
    )
    model, ids = transformers.DebertaV2Model(config).train(), torch.tensor(_ids(args))

    def call() -> None:
        model.zero_grad(set_to_none=True)
        model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state.square().mean().backward()

    return call


if __name__ == "__main__":
    main()
