"""Makes presumm_selection.json beside this file: the sentences that PreSumm's own test chooses by their scores.

Usage: python tests/parity/golden/make_presumm_selection_golden.py PRESUMM [--output FILE] [--seed N]

PRESUMM is a clone of nlpyang/PreSumm, whose `Trainer.test` is run as it stands on a model that is told its scores, with
trigram blocking and without; what else it looks at is as `train.py` has it by default. Takes torch and tensorboardX.
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
PATCHES = {"utils.py": [("from others import pyrouge\n", "")]}  # which is not needed


class Told(torch.nn.Module):
    """A model whose scores are its input."""

    def forward(self, src, segs, clss, mask_src, mask_cls):
        """Returns what a model of PreSumm's does."""
        return src, mask_cls


def make_documents(seed):
    """Different sentences of few words, and a score for each, of which no two are alike, and all exact in float32."""
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
    """What PreSumm's loader gives of them, padded."""
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
    """The numbers of the sentences of each summary, in its order."""
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
    """Writes all, a document a line."""
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
