"""Makes presumm_abs/ in this folder with PreSumm's own code: a small BertSumAbs, its scores, gradient and summaries.

Usage: python tests/parity/golden/make_presumm_abs_golden.py PRESUMM [--output FOLDER] [--seed N]

See make_presumm_golden.py for the requirements. The model is trained for some seconds to copy words of its source, so
that the summaries depend on the source, and are long enough to repeat n-grams. Documents whose summaries depend on
rounding are dropped, because rounding can change the rank of nearly equal hypotheses.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from make_presumm_golden import OPTIONS, PATCHES, SIZES, open_code

GOLDEN = Path(__file__).with_name("presumm_abs")
PAD, BOS, EOS, CLS, SEP, FIRST_WORD, FIRST_PIECE, VOCAB = 0, 1, 2, 4, 5, 6, 26, 37
DRAWN, DOCUMENTS, SOURCE, TARGET, HIDDEN = 80, 50, 24, 16, 16
# Noise of log-probabilities, some times as large as rounding differences, and the number of trials with it.
NOISE, TRIALS = 1e-4, 4
VALUES = {
    **OPTIONS,
    "task": "abs",
    "share_emb": False,
    "use_bert_emb": False,
    "dec_dropout": 0.2,
    "dec_layers": 2,
    "dec_hidden_size": HIDDEN,
    "dec_heads": 4,
    "dec_ff_size": 14,
    "warmup_steps_bert": 20000,
    "warmup_steps_dec": 10000,
    "alpha": 0.95,
    "beam_size": 5,
    "min_length": 4,
    "max_length": 20,
    "block_trigram": True,
}
# The decoder's mask, which each of its layers stores, takes 25 MB. pyrouge is not needed. In current torch, quotients
# are floats.
PATCHES = {
    **PATCHES,
    "decoder.py": [("MAX_SIZE = 5000", "MAX_SIZE = 32")],
    "utils.py": [("from others import pyrouge\n", "")],
    "predictor.py": [("topk_ids.div(vocab_size)", "topk_ids.div(vocab_size, rounding_mode='floor')")],
}


class Vocabulary:
    """A vocabulary in which no word is a prefix of another. Words from FIRST_PIECE on continue a word."""

    def __init__(self):
        self.ids_to_tokens = [f"w{i:02}" if i < FIRST_PIECE else f"##p{i:02}" for i in range(VOCAB)]


def make_model():
    """Makes the model, its options and its two optimizers."""
    import pytorch_transformers
    from models.model_builder import AbsSummarizer, build_optim_bert, build_optim_dec

    config = pytorch_transformers.BertConfig(
        **{**SIZES, "hidden_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 2}
    )
    pytorch_transformers.BertModel.from_pretrained = classmethod(lambda cls, *args, **kwargs: cls(config))
    options = argparse.Namespace(**VALUES)
    model = AbsSummarizer(options, "cpu", None)
    return model, options, [build_optim_bert(options, model, None), build_optim_dec(options, model, None)]


def make_documents(rows, seed):
    """Makes documents of two sentences. The second often repeats the first; summaries have the words of both."""
    random = np.random.default_rng(seed)
    batch = {name: np.zeros((rows, SOURCE), np.int32) for name in ("input_ids", "segment_ids", "token_type_ids")}
    batch["target_ids"] = np.zeros((rows, TARGET + 2), np.int32)
    for row in range(rows):
        first = random.integers(FIRST_WORD, VOCAB, random.integers(3, 9))
        second = first if random.random() < 0.6 else random.integers(FIRST_WORD, VOCAB, random.integers(3, 9))
        source = [CLS, *first, SEP, CLS, *second, SEP]
        batch["input_ids"][row, : len(source)] = source
        batch["segment_ids"][row, : len(source)] = 1
        batch["token_type_ids"][row, len(first) + 2 : len(source)] = 1
        target = [BOS, *[*first, *second][:TARGET], EOS]
        batch["target_ids"][row, : len(target)] = target
    return batch


def log_probabilities(model, batch):
    """The log-probabilities of all words after each target token except the last."""
    source, segments, types, target = (
        torch.from_numpy(batch[name]).long() for name in ("input_ids", "segment_ids", "token_type_ids", "target_ids")
    )
    decoded, _ = model(source, target, types, None, segments.byte(), None, None)
    return model.generator(decoded), target[:, 1:]


def loss_of(model, batch):
    """The sum of the negative log-likelihoods."""
    scores, labels = log_probabilities(model, batch)
    return torch.nn.functional.nll_loss(scores.flatten(0, 1), labels.flatten(), ignore_index=PAD, reduction="sum")


def train(model, seed):
    """Makes some hundred updates without dropout. After more, rounding errors would be as large as the differences."""
    torch.manual_seed(seed)
    model.eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(300):
        batch = make_documents(32, 1000 * (seed + 1) + step)
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        (loss / 200).backward()
        optimizer.step()
    print(f"loss of the last batch: {loss.item() / (batch['target_ids'][:, 1:] != PAD).sum():.3f} a token")
    with torch.no_grad():
        model.generator[0].bias[[PAD, BOS]] = -30  # ours never generates these two, PreSumm treats them as words


def summarize(model, options, batch, noise=0.0):
    """Returns ids of the best hypotheses up to the first end token, and their scores."""
    from models.predictor import build_predictor

    def noisy(decoded):
        scores = model.generator(decoded)
        return scores + noise * torch.randn_like(scores)

    rows = len(batch["input_ids"])
    with tempfile.TemporaryDirectory() as folder:
        options = argparse.Namespace(**{**vars(options), "model_path": folder})
        predictor = build_predictor(options, Vocabulary(), {"BOS": BOS, "EOS": EOS}, model)
        predictor.generator = argparse.Namespace(forward=noisy)
        documents = argparse.Namespace(
            src=torch.from_numpy(batch["input_ids"]).long(),
            segs=torch.from_numpy(batch["token_type_ids"]).long(),
            mask_src=torch.from_numpy(batch["segment_ids"]).byte(),
            batch_size=rows,
        )
        found = predictor.translate_batch(documents)
    ids = np.zeros((rows, options.max_length), np.int32)
    for row, (prediction,) in enumerate(found["predictions"]):
        words = prediction.tolist()
        words = words[: words.index(EOS) + 1] if EOS in words else words
        ids[row, : len(words)] = words
    return ids, np.array([score.item() for (score,) in found["scores"]], np.float32)


def summarize_both(model, options, batch, noise=0.0):
    """Returns summaries with and without trigram blocking, by name."""
    expected = {}
    for name, blocks in (("blocked", True), ("free", False)):
        options = argparse.Namespace(**{**vars(options), "block_trigram": blocks})
        expected[f"{name}_ids"], expected[f"{name}_scores"] = summarize(model, options, batch, noise)
    return expected


def is_clear(model, options, batch):
    """Whether noise does not change a document's summaries, and blocking leaves at least one beam."""
    found = summarize_both(model, options, batch)
    clear = found["blocked_scores"] > -1e9
    for _ in range(TRIALS):
        noisy = summarize_both(model, options, batch, NOISE)
        for name in ("blocked_ids", "free_ids"):
            clear &= (noisy[name] == found[name]).all(1)
    return clear


def main():
    """Writes all files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("presumm", type=Path)
    parser.add_argument("--output", type=Path, default=GOLDEN)
    parser.add_argument("--seed", type=int, default=0)
    values = parser.parse_args()
    values.output.mkdir(parents=True, exist_ok=True)
    open_code(values.presumm, PATCHES)
    torch.manual_seed(values.seed)
    model, options, optimizers = make_model()
    train(model, values.seed)
    saved = {"model": model.state_dict(), "opt": options, "optims": optimizers}
    saved["model"]["decoder.pos_emb.pe"] = saved["model"]["decoder.pos_emb.pe"][:, :16].clone()  # of 5000
    torch.save(saved, values.output / "model.pt", _use_new_zipfile_serialization=False)
    batch = make_documents(DRAWN, values.seed)
    clear = np.flatnonzero(is_clear(model, options, batch))
    print(f"{len(clear)} of {DRAWN} documents are clear")
    assert len(clear) >= DOCUMENTS
    batch = {name: array[clear[:DOCUMENTS]] for name, array in batch.items()}
    np.savez_compressed(values.output / "documents.npz", **batch)
    model.zero_grad()
    loss_of(model, batch).backward()
    gradient = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}
    torch.save({"model": gradient}, values.output / "gradient.pt", _use_new_zipfile_serialization=False)
    with torch.no_grad():
        scores, _ = log_probabilities(model, {name: array[:8] for name, array in batch.items()})
    expected = {"log_probabilities": scores.numpy(), **summarize_both(model, options, batch)}
    np.savez_compressed(values.output / "expected.npz", **expected)


if __name__ == "__main__":
    main()
