"""Speed of beam search compared with `generate` of transformers and with CTranslate2, interleaved, on a CPU.

    python -m benchmarks.decoding --rounds=5 [--size=bart-base] [--malloc=tcmalloc]

All use the same model of transformers with random weights in float32. Sentences consist of random words, and each
translation has the requested number of tokens, so that all do the same amount of work. Each contender decodes with
several batch sizes; the ratios compare with our best one. CTranslate2 is included for Marian if it is installed.
"""

import argparse
import functools
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import common
from benchmarks.common import Speed
from bertjax.config import build
from bertjax.decoding.config import DecodingConfig
from bertjax.interop import encoder_decoders
from bertjax.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig, Seq2SeqInputs
from bertjax.tasks import seq2seq
from bertjax.tasks.seq2seq import TargetIds

# The class of transformers, layers, H, N and F.
SIZES = {
    "base": ("Marian", 6, 512, 8, 2048),
    "tiny": ("Marian", 4, 128, 4, 256),
    "bart-base": ("Bart", 6, 768, 12, 3072),
    "t5-small": ("T5", 6, 512, 8, 2048),
}
_END = 0
Rows = Sequence[Sequence[int]]


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    parser = common.parser(__doc__ or "", rounds=5)
    parser.add_argument("--size", choices=tuple(SIZES), default="base")
    parser.add_argument("--vocab_size", type=int, default=32_000)
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=30, help="of each translation")
    parser.add_argument("--batches", type=int, nargs="+", default=(32, 100), help="sentences at once")
    args = parser.parse_args()
    if args.smoke:
        args.size = "tiny"
        args.vocab_size = 1000
        args.sentences = 4
        args.tokens = 5
        args.batches = (4,)
    common.report(measure, args)


def measure(args: argparse.Namespace) -> Iterator[Speed]:
    """Yields our speed, with our best batch size, compared with that of each peer and batch size."""
    random = np.random.default_rng(0)
    lengths = random.integers(10, 31, args.sentences)
    rows = [random.integers(1, args.vocab_size - 1, length).tolist() for length in lengths]
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), *SIZES[args.size], args.vocab_size)
        contenders: dict[str, Callable[[Rows], Rows]] = {"ours": Ours(folder, args.beams, args.tokens)}
        contenders["transformers"] = Transformers(folder, args.beams, args.tokens)
        if missing := common.missing("ctranslate2"):
            print(missing, flush=True)
        elif SIZES[args.size][0] == "Marian":
            contenders["CTranslate2"] = CTranslate2(folder, args.beams, args.tokens, args.vocab_size)
        work = f"{args.sentences} sentences of {lengths.mean():.0f} tokens on average into {args.tokens} each"
        print(f"{args.size}, {args.vocab_size:,} words, {args.beams} beams, {work}\n", flush=True)
        calls = {
            (name, size): functools.partial(in_batches, contender, rows, size)
            for name, contender in contenders.items()
            for size in args.batches
        }
        outputs = {key: call() for key, call in calls.items()}
        seconds = common.interleave(calls, args.rounds)
    best = min((key for key in seconds if key[0] == "ours"), key=lambda key: statistics.median(seconds[key]))
    for name, output in ((name, outputs[name, args.batches[0]]) for name in contenders):
        alike = sum(a == b for a, b in zip(output, outputs["ours", args.batches[0]], strict=True))
        different = len({tuple(row) for row in output})
        print(f"{name}: {alike} of {len(output)} translations equal ours, {different} are distinct")
    for name, size in seconds:
        peer = f"{name}, {size} at once"
        pair = {"ours": seconds[best], peer: seconds[name, size]}
        if (name, size) != best:
            yield common.speed_of(f"translating, {best[1]} at once", "tokens/s", args.sentences * args.tokens, pair)


def in_batches(contender: Callable[[Rows], Rows], rows: Rows, size: int) -> list[list[int]]:
    """Returns the translations in the order of the rows. Batches contain rows of similar length."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    translations: list[list[int]] = [[] for _ in rows]
    for start in range(0, len(rows), size):
        members = order[start : start + size]
        for i, row in zip(members, contender([rows[i] for i in members]), strict=True):
            translations[i] = list(row)
    return translations


def save_model(folder: Path, kind: str, layers: int, hidden: int, heads: int, inner: int, vocab_size: int) -> None:
    """Saves a transformers model. Its random weights are larger than the default, so that translations differ."""
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    sizes = {"vocab_size": vocab_size, "d_model": hidden, "max_position_embeddings": 512, "init_std": hidden**-0.5}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": layers, f"{side}_attention_heads": heads, f"{side}_ffn_dim": inner}
    pad = vocab_size - 1
    ids = {"pad_token_id": pad, "eos_token_id": _END, "decoder_start_token_id": pad, "forced_eos_token_id": None}
    if kind == "T5":
        sizes = {"vocab_size": vocab_size, "d_model": hidden, "num_layers": layers, "num_heads": heads, "d_ff": inner}
    elif kind == "Marian":
        sizes |= {"scale_embedding": True, "activation_function": "swish"}
    config = getattr(transformers, f"{kind}Config")(**sizes, **ids)
    transformers.AutoModelForSeq2SeqLM.from_config(config).save_pretrained(folder)


def load(folder: Path, **values: Any) -> tuple[EncoderDecoder, Any, dict[str, Any]]:
    """Returns the model of a folder with further values of its config, its parameters, and its config.json."""
    raw = json.loads((folder / "config.json").read_text())
    model = EncoderDecoder(
        build(EncoderDecoderConfig, {**encoder_decoders.read_config(raw, folder), **values}, "model")
    )
    ids = jnp.zeros((1, 1), jnp.int32)
    init = functools.partial(model.init, deterministic=True, return_attention=False)
    like = jax.eval_shape(init, jax.random.key(0), Seq2SeqInputs(ids, ids, ids, ids))["params"]
    return model, jax.device_put(encoder_decoders.load(folder, like, raw)), raw


class Ours:
    """Our `seq2seq.generate`, as used by predictions."""

    def __init__(self, folder: str, beams: int, tokens: int) -> None:
        """Initializes from the model's folder, the number of beams, and the tokens of a translation without the end."""
        rest = {"dtype": "float32", "attention_backend": "xla", "initializer": "truncated_normal"}
        model, self._params, _ = load(Path(folder), **rest, scan_layers=False)
        decoding = DecodingConfig(
            num_beams=beams,
            length_penalty="length",
            alpha=1.0,
            max_length=tokens + 1,
            max_ratio=0.0,
            max_extra=tokens + 1,
            min_extra=tokens,
            force_eos=True,
            stopping="hf",
        )
        pad = model.config.target_vocab_size - 1
        write = functools.partial(seq2seq.generate, model, config=decoding, ids=TargetIds(pad, _END, pad), seed=0)
        self._write, self._tokens = jax.jit(write), tokens

    def __call__(self, rows: Rows) -> Rows:
        """Returns the translations."""
        width = max(map(len, rows)) + 1
        batch = {name: np.zeros((len(rows), width), np.int32) for name in ("input_ids", "segment_ids")}
        for i, row in enumerate(rows):
            batch["input_ids"][i, : len(row)] = row
            batch["segment_ids"][i, : len(row) + 1] = 1
        outputs = self._write(self._params, batch)
        return np.asarray(outputs["ids"])[:, 0, : self._tokens].tolist()


class Transformers:
    """The method `generate` of transformers."""

    def __init__(self, folder: str, beams: int, tokens: int) -> None:
        """Initializes from the model's folder, the number of beams, and the tokens of a translation."""
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self._torch, self._tokens = torch, tokens
        self._model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        self._options: dict[str, Any] = {"num_beams": beams, "min_new_tokens": tokens, "max_new_tokens": tokens + 1}

    def __call__(self, rows: Rows) -> Rows:
        """Returns the translations."""
        width, pad = max(map(len, rows)) + 1, self._model.config.pad_token_id
        ids = self._torch.full((len(rows), width), pad)
        for i, row in enumerate(rows):
            ids[i, : len(row) + 1] = self._torch.tensor([*row, _END])
        mask = (ids != pad).long()
        options = {**self._options, "bad_words_ids": [[pad]], "forced_eos_token_id": _END}
        outputs = self._model.generate(input_ids=ids, attention_mask=mask, **options)
        return outputs[:, 1 : self._tokens + 1].tolist()


class CTranslate2:
    """The translator of CTranslate2 with the same weights."""

    def __init__(self, folder: str, beams: int, tokens: int, vocab_size: int) -> None:
        """Converts the model of a folder. The words of the vocabulary are their numbers."""
        import ctranslate2

        names = [str(i) for i in range(vocab_size)]
        names[_END], names[-1] = "</s>", "<pad>"

        class Tokenizer:
            eos_token, unk_token = "</s>", names[1]

            def get_vocab(self) -> dict[str, int]:
                return {name: i for i, name in enumerate(names)}

        class Converter(ctranslate2.converters.TransformersConverter):
            def load_tokenizer(self, *args: Any, **kwargs: Any) -> Any:
                return Tokenizer()

        Converter(folder).convert(str(Path(folder) / "ctranslate2"), force=True)
        threads = len(os.sched_getaffinity(0))
        self._translator = ctranslate2.Translator(
            str(Path(folder) / "ctranslate2"), compute_type="float32", intra_threads=threads
        )
        self._names = names
        self._numbers = {name: i for i, name in enumerate(names)}
        self._options = {"beam_size": beams, "min_decoding_length": tokens, "max_decoding_length": tokens}

    def __call__(self, rows: Rows) -> Rows:
        """Returns the translations."""
        sources = [[*(self._names[i] for i in row), "</s>"] for row in rows]
        results = self._translator.translate_batch(sources, max_batch_size=len(rows), **self._options)
        return [[self._numbers[name] for name in result.hypotheses[0]] for result in results]


if __name__ == "__main__":
    main()
