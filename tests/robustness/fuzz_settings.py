"""Fuzzing of the settings of published folders, compared with the libraries that write them.

    python -m tests.robustness.fuzz_settings --cases=500 --seed=0

Each case changes, deletes or adds keys of the JSON files of a random folder of sentence-transformers or transformers.
Where both we and the reference open it, vectors, scores or translations must be equal, unless a warning names the key.
Otherwise, the case must end with a UserError of one line. `--case=CASE` repeats a case.
"""

import argparse
import collections
import json
import logging
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Most cases run the same programs.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax
import numpy as np
import sentence_transformers
import torch
import transformers

import bertjax
from bertjax.data.text.tokenizer_keys import SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG
from bertjax.decoding.generation import GENERATION
from bertjax.interop import folder_keys
from tests.robustness import fuzz, fuzz_mutations, reference_folders

TEXTS = ["cat", "the dog sees the bird . the cat sees the dog . bird"]
PAIRS = [("cat sees", text) for text in TEXTS]
SOURCES = ["A dog runs over the grass.", "Zwei Männer"]
_VALUES = [
    *("left", "right", "dot", "cosine", "query", "of cats", "never", "mean", "cls", ["cls", "max"], "longest_first"),
    *("sentence_embedding", "token_embeddings", "CrossEncoder", "torch.nn.modules.activation.Sigmoid", "[CLS]", "cat"),
    *(False, 1, 2, 3, 5, 7, 16, 0.5, 1.0, 2.0, [0], [5], [[3]], [[3, 4]], [[0]], {"of cats": "dog "}),
]
# By file: its keys.
_KEYS = {
    folder_keys.SETTINGS_FILE: folder_keys.SETTINGS,
    folder_keys.MODULES_FILE: folder_keys.MODULE,
    "sentence_bert_config.json": folder_keys.TEXTS,
    "tokenizer_config.json": TOKENIZER_CONFIG,
    "special_tokens_map.json": SPECIAL_TOKENS_MAP,
    "generation_config.json": GENERATION,
    "config.json": GENERATION,
    **{f"{number}_{kind}/config.json": table for number, (kind, table) in enumerate(folder_keys.MODULES.items())},
}


class Kind(NamedTuple):
    """A kind of folder."""

    write: Callable[[Path], Path]
    files: tuple[str, ...]  # those with settings
    ours: Callable[[Path], Any]
    theirs: Callable[[Path], Any]


def _our_vectors(folder: Path) -> Any:
    return bertjax.load(folder).encode(TEXTS)


def _their_vectors(folder: Path) -> Any:
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(TEXTS, batch_size=1)


def _our_scores(folder: Path) -> Any:
    return np.array([record["score"] for record in bertjax.load(folder, "reranker").predict(PAIRS)])


def _their_scores(folder: Path) -> Any:
    return sentence_transformers.CrossEncoder(str(folder), device="cpu").predict(PAIRS, batch_size=1)


def _our_translations(folder: Path) -> Any:
    # The reference drops unknown tokens from texts.
    return [record["translation"].replace(" \u2047 ", "").strip() for record in bertjax.load(folder).predict(SOURCES)]


def _their_translations(folder: Path) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    # Without a maximum length, ours is that of the positions instead of 20 tokens.
    is_stated = model.generation_config.max_length or model.generation_config.max_new_tokens
    options: dict[str, Any] = {"return_dict_in_generate": False}
    options |= {} if is_stated else {"max_length": bertjax.load(folder).config.decoding.max_length + 1}
    rows = (tokenizer([source], return_tensors="pt") for source in SOURCES)
    return [tokenizer.decode(model.generate(**row, **options)[0], skip_special_tokens=True).strip() for row in rows]


_OF_TEXTS = ("tokenizer_config.json", "special_tokens_map.json", "sentence_bert_config.json", folder_keys.MODULES_FILE)
KINDS = {
    "bi-encoder": Kind(
        reference_folders.write_bi_encoder,
        (*_OF_TEXTS, folder_keys.SETTINGS_FILE, *(name for name in _KEYS if name.endswith("/config.json"))),
        _our_vectors,
        _their_vectors,
    ),
    "cross-encoder": Kind(
        reference_folders.write_cross_encoder, (*_OF_TEXTS, folder_keys.SETTINGS_FILE), _our_scores, _their_scores
    ),
    "marian": Kind(
        reference_folders.write_marian,
        ("generation_config.json", "generation_config.json", "config.json", "tokenizer_config.json"),
        _our_translations,
        _their_translations,
    ),
}


def change(folder: Path, kind: Kind, rng: random.Random) -> list[str]:
    """Changes one to three keys in the files of a folder. Returns the changes, for messages."""
    changes = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        name = rng.choice(kind.files)
        path = folder / name
        values: Any = json.loads(path.read_text()) if path.exists() else {}
        if name == "config.json" and (folder / "generation_config.json").exists():
            # transformers ignores the keys of this file unless the other one is missing.
            values |= json.loads((folder / "generation_config.json").read_text())
            (folder / "generation_config.json").unlink()
        target = rng.choice(values) if isinstance(values, list) else values
        key = rng.choice([*sorted(target), *sorted(_KEYS.get(name, GENERATION).names), "new_key"])
        if rng.random() < 0.25:
            target.pop(key, None)
        else:
            target[key] = rng.choice(rng.choice((_VALUES, fuzz_mutations.VALUES)))
        changes.append(f"{name}: {key}={target.get(key, 'deleted')!r}")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(values))
    return changes


def case(name: str, home: Path) -> tuple[str, str]:
    """Runs a case "SEED/KIND/NUMBER". Returns its outcome, and the description of a finding."""
    kind = KINDS[name.split("/")[1]]
    folder = home / name.replace("/", "-")
    shutil.copytree(home / name.split("/")[1], folder)
    changes = change(folder, kind, random.Random(name))
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("bertjax")
    logger.addHandler(handler)
    try:
        with fuzz.limited():
            ours = kind.ours(folder)
    except Exception as error:
        outcome, finding = fuzz.outcome_of(error)
        return outcome, f"{finding} ({'; '.join(changes)})"
    finally:
        logger.removeHandler(handler)
    try:
        theirs = kind.theirs(folder)
    except Exception:
        return "success", "the reference refuses the folder"
    finally:
        shutil.rmtree(folder)
    keys = [one.split(": ")[1].split("=")[0] for one in changes]
    is_named = any(key in warning for key in keys for warning in warnings)
    if are_equal(ours, theirs):
        return "success", "equal results"
    if is_named:
        return "success", "a warning names the key"
    return "wrong success", f"{ours!s:.200} instead of {theirs!s:.200} ({'; '.join(changes)})"


def are_equal(ours: Any, theirs: Any) -> bool:
    """Returns whether results are equal up to rounding."""
    if isinstance(ours, np.ndarray):
        return ours.shape == theirs.shape and bool(np.allclose(ours, theirs, atol=1e-4))
    return bool(ours == theirs)


def main() -> None:
    """Runs one case, or random cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", default="", help="SEED/KIND/NUMBER of a finding")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    successes: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        jax.config.update("jax_compilation_cache_dir", f"{home}/cache")
        for name, kind in KINDS.items():
            kind.write(home / name)
        names = [f"{args.seed}/{[*KINDS][number % len(KINDS)]}/{number}" for number in range(args.cases)]
        for number, name in enumerate([args.case] if args.case else names):
            outcome, finding = case(name, home)
            if number % 50 == 49:
                print(f"{number + 1} cases", flush=True)
            counts[name.split("/")[1], outcome] += 1
            successes.update([finding] if outcome == "success" else [])
            if args.case or outcome not in fuzz.OUTCOMES[:2]:
                print(f"{outcome}, case {name!r}: {finding}", flush=True)
    print("\n".join(fuzz.table(counts)))
    print("successes:", ", ".join(f"{count} {reason}" for reason, count in successes.items()))
    sys.exit(any(outcome not in fuzz.OUTCOMES[:2] for _, outcome in counts))


if __name__ == "__main__":
    main()
