"""Makes presumm/ in this folder with PreSumm's and BertSum's own code: small models, their scores and gradients.

Usage: python tests/parity/golden/make_presumm_golden.py PRESUMM BERTSUM [--output FOLDER] [--seed N]

PRESUMM and BERTSUM are clones of nlpyang/PreSumm and nlpyang/BertSum. The script patches their code in memory, so that
it runs on current torch. It needs torch, pytorch-transformers 1.2.0 and pytorch-pretrained-bert 0.6.2, in a separate
environment.
"""

import argparse
import importlib.abc
import importlib.util
import sys
from pathlib import Path

import numpy as np
import torch

GOLDEN = Path(__file__).with_name("presumm")

# Odd sizes, so that no two axes can be confused.
VOCAB, HIDDEN, POSITIONS, LENGTH, DOCUMENTS = 37, 12, 40, 36, 100
SIZES = {
    "vocab_size_or_config_json_file": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 14,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": POSITIONS,
    "type_vocab_size": 2,
}
OPTIONS = {
    "task": "ext",
    "encoder": "bert",
    "large": False,
    "temp_dir": "",
    "finetune_bert": True,
    "max_pos": POSITIONS,
    "use_interval": True,
    "ext_dropout": 0.1,
    "ext_layers": 2,
    "ext_heads": 4,
    "ext_ff_size": 10,
    "ext_hidden_size": HIDDEN,
    "param_init": 0,
    "param_init_glorot": True,
    "dropout": 0.1,
    "inter_layers": 2,
    "heads": 4,
    "ff_size": 10,
    "rnn_size": HIDDEN,
    "gpu_ranks": [0],
    "optim": "adam",
    "lr": 2e-3,
    "lr_bert": 2e-3,
    "lr_dec": 0.2,
    "max_grad_norm": 0,
    "beta1": 0.9,
    "beta2": 0.999,
    "decay_method": "noam",
    "warmup_steps": 10000,
    "visible_gpus": "-1",
    "train_from": "",
}
# Modules that are imported from a clone.
MODULES = ("models", "others", "translate", "distributed")
# Replacements in the files of their `models`. Their masks are bytes, which current torch does not accept. The checks of
# torch's LSTMCell no longer exist.
PATCHES = {
    "neural.py": [("masked_fill(mask, ", "masked_fill(mask.bool(), ")],
    "rnn.py": [
        ("        self.check_forward_input(input)\n", ""),
        ("        self.check_forward_hidden(input, hx, '[0]')\n", ""),
        ("        self.check_forward_hidden(input, cx, '[1]')\n", ""),
    ],
}
# The intended code of BertSum: a row of states for each step.
AS_MEANT = [
    (f"{name}t = [[None, ] * (self.num_layers * num_directions)] * seq_len",
     f"{name}t = [[None, ] * (self.num_layers * num_directions) for _ in range(seq_len)]")
    for name in "hc"
]  # fmt: skip


class Patched(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports `MODULES` from a clone, patched."""

    def __init__(self, source, patches):
        self.source, self.patches = source, patches

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in MODULES:
            return None
        file = self.source.joinpath(*name.split("."))
        is_package = file.is_dir()
        file = file / "__init__.py" if is_package else file.with_suffix(".py")
        return importlib.util.spec_from_file_location(
            name, file, loader=self, submodule_search_locations=[str(file.parent)] if is_package else None
        )

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        file = Path(module.__spec__.origin)
        code = file.read_text() if file.exists() else ""
        for old, new in self.patches.get(file.name, []):
            assert old in code, f"{file}: no {old}"
            code = code.replace(old, new)
        exec(compile(code, str(file), "exec"), module.__dict__)


def open_code(clone, patches):
    """Imports `MODULES` from a clone."""
    for name in [name for name in sys.modules if name.split(".")[0] in MODULES]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Patched)]
    sys.meta_path.insert(0, Patched(Path(clone) / "src", patches))


def make_presumm():
    """Makes PreSumm's extractive model."""
    import pytorch_transformers
    from models.model_builder import ExtSummarizer, build_optim

    config = pytorch_transformers.BertConfig(**SIZES)
    pytorch_transformers.BertModel.from_pretrained = classmethod(lambda cls, *args, **kwargs: cls(config))
    options = argparse.Namespace(**OPTIONS)
    model = ExtSummarizer(options, "cpu", None)
    return model, options, build_optim(options, model, None)


def make_bertsum(scorer):
    """Makes BertSum's model."""
    from models.model_builder import Summarizer, build_optim
    from pytorch_pretrained_bert import BertConfig

    options = argparse.Namespace(**{**OPTIONS, "encoder": scorer})
    model = Summarizer(options, "cpu", bert_config=BertConfig(**{**SIZES, "num_hidden_layers": 1}))
    return model, options, build_optim(options, model, None)


def randomize(model, seed):
    """Sets random parameters, so that no bias is 0, no norm is 1 and no attention is uniform."""
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.from_numpy(random.standard_normal(parameter.shape, np.float32))
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(0.2 * noise + (1.0 if is_norm else 0.0))


def make_documents(seed):
    """Makes padded documents of 1 to 8 sentences, each with [CLS] (1) before and [SEP] (2) after it."""
    random = np.random.default_rng(seed)
    batch = {name: np.zeros((DOCUMENTS, LENGTH), np.int32) for name in ("input_ids", "token_type_ids", "segment_ids")}
    batch |= {name: np.zeros((DOCUMENTS, 8), np.int32) for name in ("cls_positions", "sentence_mask", "labels")}
    for row in range(DOCUMENTS):
        place = 0
        for number in range(random.integers(1, 9)):
            words = random.integers(3, VOCAB, random.integers(1, 9))
            sentence = [1, *words, 2]
            if place + len(sentence) > LENGTH:
                break
            span = slice(place, place + len(sentence))
            batch["input_ids"][row, span], batch["token_type_ids"][row, span] = sentence, number % 2
            batch["segment_ids"][row, span] = 1
            batch["cls_positions"][row, number], batch["sentence_mask"][row, number] = place, 1
            batch["labels"][row, number] = random.integers(0, 2)
            place = span.stop
    return batch


def arguments(batch):
    """The arguments of both models; their masks are bytes."""
    ids, types, tokens, positions, sentences = (
        torch.from_numpy(batch[name])
        for name in ("input_ids", "token_type_ids", "segment_ids", "cls_positions", "sentence_mask")
    )
    return ids.long(), types.long(), positions.long(), tokens.byte(), sentences.byte()


def run(model, batch):
    """Returns scores, and the gradient of the masked binary cross-entropy, summed as in training, without dropout."""
    model.eval()
    model.zero_grad()
    scores, mask = model(*arguments(batch))
    losses = torch.nn.BCELoss(reduction="none")(scores, torch.from_numpy(batch["labels"]).float()) * mask.float()
    losses.sum().backward()
    gradient = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}
    return scores.detach().numpy(), gradient


def run_alone(model, batch):
    """Returns the scores of each document without padding."""
    scores = np.zeros(batch["labels"].shape, np.float32)
    for row in range(DOCUMENTS):
        length, count = batch["segment_ids"][row].sum(), batch["sentence_mask"][row].sum()
        one = {name: array[row : row + 1] for name, array in batch.items()}
        one = {name: array[:, : count if array.shape[1] == 8 else length] for name, array in one.items()}
        with torch.no_grad():
            scores[row, :count] = model.eval()(*arguments(one))[0].numpy()[0]
    return scores


def write(folder, name, made, seed, batch, legacy, updated):
    """Writes NAME.pt like the trainer, with scores and gradients of these weights. Returns the weights.

    After an update, the file also has the state of Adam.
    """
    model, options, optimizer = made
    randomize(model, seed)
    if updated:
        run(model, batch)
        optimizer.step()
    saved = {"model": model.state_dict(), "opt": options, "optim": optimizer}
    if "ext_layer.pos_emb.pe" in saved["model"]:  # the table has 5000 rows
        saved["model"]["ext_layer.pos_emb.pe"] = saved["model"]["ext_layer.pos_emb.pe"][:, :16].clone()
    torch.save(saved, folder / f"{name}.pt", _use_new_zipfile_serialization=not legacy)
    scores, gradient = run(model, batch)
    torch.save({"model": gradient}, folder / f"{name}_gradient.pt", _use_new_zipfile_serialization=False)
    np.savez_compressed(folder / f"{name}.npz", scores=scores)
    return model.state_dict()


def main():
    """Writes all files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("presumm", type=Path)
    parser.add_argument("bertsum", type=Path)
    parser.add_argument("--output", type=Path, default=GOLDEN)
    parser.add_argument("--seed", type=int, default=0)
    values = parser.parse_args()
    values.output.mkdir(parents=True, exist_ok=True)
    batch = make_documents(values.seed)
    np.savez_compressed(values.output / "documents.npz", **batch)
    open_code(values.presumm, PATCHES)
    write(values.output, "transformer", make_presumm(), values.seed + 1, batch, legacy=True, updated=True)
    open_code(values.bertsum, PATCHES)
    write(values.output, "classifier", make_bertsum("classifier"), values.seed + 2, batch, legacy=False, updated=True)
    weights = write(values.output, "rnn", make_bertsum("rnn"), values.seed + 3, batch, legacy=True, updated=False)
    open_code(values.bertsum, {**PATCHES, "rnn.py": PATCHES["rnn.py"] + AS_MEANT})
    model, _, _ = make_bertsum("rnn")
    model.load_state_dict(weights)
    np.savez_compressed(values.output / "rnn_as_meant.npz", scores=run_alone(model, batch))


if __name__ == "__main__":
    main()
