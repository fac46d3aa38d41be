"""PreSumm's training of BertSum: the scorers of its repository, on the BERT of transformers."""

import copy
import importlib
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from bertjax.contract import Batch

_fill = torch.Tensor.masked_fill


class TorchSummarization:
    """PreSumm's model and loss, with AdamW, on the BERT of current transformers."""

    def __init__(self, repository: Path, config: Mapping[str, Any], attention: str = "sdpa") -> None:
        """Builds the model.

        Args:
          repository: a copy of nlpyang/PreSumm.
          config: the complete config of a `bertsum_ext` run.
          attention: the attention of transformers: "eager", as at the time of PreSumm, or "sdpa", the fastest.
        """
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self._bert = transformers.BertModel.from_pretrained(config["init_from"], attn_implementation=attention)
        self._scorer = _scorer(repository, self._bert.config.hidden_size, config["model"])
        self._model = torch.nn.ModuleDict({"bert": self._bert, "scorer": self._scorer})
        self._clip_norm = config["optimizer"]["clip_norm"]
        self._optimizer = _adamw(self._model, config["optimizer"])
        warmup, steps = config["optimizer"]["warmup_steps"], config["num_steps"]
        self._schedule = transformers.get_linear_schedule_with_warmup(self._optimizer, warmup, steps)
        self._loss = torch.nn.BCELoss(reduction="none")

    def update(self, rows: Sequence[Batch]) -> float:
        """Makes an update on rows with inputs and labels. Returns the mean loss of a sentence."""
        self._model.train()
        ids, types, positions, is_sentence = _padded(rows)
        starts = [row["sentence_starts"] == 1 for row in rows]
        labels, weights = (
            _stacked([row[name][where] for row, where in zip(rows, starts, strict=True)]).float()
            for name in ("labels", "label_weights")
        )
        losses = self._loss(self._scores(ids, types, positions, is_sentence), labels) * weights
        loss = losses.sum() / weights.sum()
        self._optimizer.zero_grad()
        loss.backward()
        if self._clip_norm:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip_norm)
        self._optimizer.step()
        self._schedule.step()
        return loss.item()

    def score(self, rows: Sequence[Batch]) -> list[np.ndarray]:
        """Returns the scores of the sentences of each row, between 0 and 1."""
        self._model.eval()
        with torch.inference_mode():
            padded = self._scores(*_padded(rows)).numpy()
        return [scores[: np.count_nonzero(row["sentence_starts"])] for scores, row in zip(padded, rows, strict=True)]

    def state(self) -> dict[str, Any]:
        """Returns a copy of all parameters."""
        return copy.deepcopy(self._model.state_dict())

    def load(self, state: Mapping[str, Any]) -> None:
        """Loads parameters that `state` returned."""
        self._model.load_state_dict(state)

    def _scores(
        self, ids: torch.Tensor, types: torch.Tensor, positions: torch.Tensor, is_sentence: torch.Tensor
    ) -> torch.Tensor:
        states = self._bert(ids, token_type_ids=types, attention_mask=(ids != 0).long()).last_hidden_state
        sentences = states[torch.arange(len(ids))[:, None], positions] * is_sentence[:, :, None]
        scores: torch.Tensor = self._scorer(sentences, is_sentence)
        return scores


def batches(rows: Sequence[Batch], tokens: int) -> list[list[Batch]]:
    """Groups rows of similar length into batches of at most `tokens` positions, including padding."""
    groups: list[list[Batch]] = [[]]
    for row in sorted(rows, key=lambda row: len(row["input_ids"])):
        if groups[-1] and (len(groups[-1]) + 1) * len(row["input_ids"]) > tokens:
            groups.append([])
        groups[-1].append(row)
    return groups


def endless(rows: Sequence[Batch], tokens: int, seed: int) -> Iterator[list[Batch]]:
    """Yields the batches of `batches` without end, in a new order in each pass."""
    drawn, order = batches(rows, tokens), random.Random(seed)
    while True:
        order.shuffle(drawn)
        yield from drawn


def _scorer(repository: Path, hidden_size: int, model: Mapping[str, Any]) -> torch.nn.Module:
    sys.path.insert(0, str(repository / "src"))
    # The torch version that PreSumm was written for accepted masks of any type.
    torch.Tensor.masked_fill = lambda tensor, mask, value: _fill(tensor, mask.bool(), value)
    layers: Any = importlib.import_module("models.encoder")
    if model["scorer"] == "classifier":
        scorer: torch.nn.Module = layers.Classifier(hidden_size)
    else:
        assert model["scorer"] == "transformer"
        sizes = (model[f"scorer_{name}"] for name in ("intermediate", "heads", "dropout", "layers"))
        scorer = layers.ExtTransformerEncoder(hidden_size, *sizes)
    for parameter in scorer.parameters():
        if parameter.dim() > 1:
            torch.nn.init.xavier_uniform_(parameter)  # as in PreSumm's ExtSummarizer
    return scorer


def _adamw(model: torch.nn.Module, values: Mapping[str, Any]) -> torch.optim.Optimizer:
    """Returns AdamW without weight decay on vectors, which are biases and norms."""
    matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) is many] for many in (True, False))
    groups = [{"params": matrices, "weight_decay": values["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}]
    betas = values["beta1"], values["beta2"]
    return torch.optim.AdamW(groups, values["learning_rate"], betas=betas, eps=values["eps"])


def _padded(rows: Sequence[Batch]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns ids and token types [B, S], the positions of [CLS] and a mask of existing sentences [B, E]."""
    starts = [np.flatnonzero(row["sentence_starts"]) for row in rows]
    ids, types = (_stacked([row[name] for row in rows]) for name in ("input_ids", "token_type_ids"))
    return ids, types, _stacked(starts), _stacked([np.ones(len(positions)) for positions in starts]).float()


def _stacked(rows: Sequence[np.ndarray]) -> torch.Tensor:
    tensors = [torch.from_numpy(np.asarray(row, np.int64)) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)
