"""Makes presumm_selection.json in this folder: the sentences that PreSumm's own test selects by given scores.

Usage: python tests/parity/golden/make_presumm_selection_golden.py PRESUMM [--output FILE] [--seed N]

PRESUMM is a clone of nlpyang/PreSumm. Its unmodified `Trainer.test` runs with a model that returns given scores, with
and without trigram blocking, and with the defaults of `train.py`. The script needs torch and tensorboardX.
"""

import argparse
import json
import random
import tempfile
from pathlib import Path

import torch
from make_presumm_golden import open_code

GOLDEN = Path(__file__).with_name("presumm_selection.json")
DOCUMENTS, ROWS, SENTENCES, WORDS, STEPS = 100, 10, 12, 12, 1024
PATCHES = {"utils.py": [("from others import pyrouge\n", "")]}  # not needed


class Told(torch.nn.Module):
    """A model whose scores are its input."""

    def forward(self, src, segs, clss, mask_src, mask_cls):
        """Returns the outputs of a PreSumm model."""
        return src, mask_cls


def make_documents(seed):
    """Makes short, distinct sentences, with distinct scores that are exact in float32."""
    rng = random.Random(seed)
    documents = []
    for _ in range(DOCUMENTS):
        sentences = []
        for _ in range(rng.randint(1, SENTENCES)):
            sentence = " ".join(rng.choice("abc") for _ in range(rng.randint(1, WORDS)))
            sentences += [] if sentence in sentences else [sentence]
        scores = [number / STEPS for number in rng.sample(range(STEPS), len(sentences))]
        documents.append({"sentences": sentences, "scores": scores})
    return documents


def batches(documents):
    """Yields padded batches like PreSumm's loader."""
    for start in range(0, len(documents), ROWS):
        rows = documents[start : start + ROWS]
        width = max(len(row["scores"]) for row in rows)
        scores, mask = torch.zeros(len(rows), width), torch.zeros(len(rows), width, dtype=torch.uint8)
        for number, row in enumerate(rows):
            scores[number, : len(row["scores"])] = torch.tensor(row["scores"])
            mask[number, : len(row["scores"])] = 1
        yield argparse.Namespace(
            batch_size=len(rows),
            src=scores,
            segs=None,
            clss=None,
            mask_src=None,
            mask_cls=mask,
            src_sent_labels=torch.zeros_like(scores),
            src_str=[row["sentences"] for row in rows],
            tgt_str=["x"] * len(rows),
        )


def choose(documents, blocks):
    """Returns the numbers of the sentences of each summary, in their order."""
    from models.trainer_ext import Trainer

    with tempfile.TemporaryDirectory() as folder:
        options = argparse.Namespace(
            save_checkpoint_steps=5, result_path=f"{folder}/result", block_trigram=blocks, recall_eval=False
        )
        Trainer(options, Told(), None).test(batches(documents), -1)
        lines = Path(f"{folder}/result_step-1.candidate").read_text().splitlines()
    return [
        [document["sentences"].index(sentence) for sentence in line.split("<q>")]
        for document, line in zip(documents, lines, strict=True)
    ]


def main():
    """Writes all documents, one per line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("presumm", type=Path)
    parser.add_argument("--output", type=Path, default=GOLDEN)
    parser.add_argument("--seed", type=int, default=0)
    values = parser.parse_args()
    open_code(values.presumm, PATCHES)
    documents = make_documents(values.seed)
    found = {name: choose(documents, blocks) for name, blocks in (("blocked", True), ("free", False))}
    rows = [
        {**document, **{name: chosen[number] for name, chosen in found.items()}}
        for number, document in enumerate(documents)
    ]
    values.output.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


if __name__ == "__main__":
    main()
