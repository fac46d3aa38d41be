"""BertSum as PreSumm trains it: its inter-sentence layers, as they stand in its repository, on transformers' BERT."""

import importlib
import itertools
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from bertjax.data.article_rows import ArticleRow
from bertjax.task import Batch

_TOKENS = 3000  # of a batch, padding included: -batch_size 3000
_fill = torch.Tensor.masked_fill


class TorchSummarization:
    """PreSumm's model, batches, loss and Adam. BERT is that of today's transformers, faster than the one it came with.

    Its batches have rows of about one length, padded to the longest, as many as 3,000 places hold.
    """

    def __init__(self, repository: Path, encoder: str, learning_rate: float) -> None:
        """Args: a copy of nlpyang/PreSumm; a Hugging Face folder of BERT; the learning rate."""
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        sys.path.insert(0, str(repository / "src"))
        # The torch that it was written for took masks of any type.
        torch.Tensor.masked_fill = lambda tensor, mask, value: _fill(tensor, mask.bool(), value)
        layers: Any = importlib.import_module("models.encoder")
        self._bert = transformers.BertModel.from_pretrained(encoder)
        self._scorer = layers.ExtTransformerEncoder(self._bert.config.hidden_size, 2048, 8, 0.1, 2)
        parameters = [*self._bert.parameters(), *self._scorer.parameters()]
        self._optimizer = torch.optim.Adam(parameters, learning_rate, betas=(0.9, 0.999), eps=1e-9)
        self._loss = torch.nn.BCELoss(reduction="none")

    def training(self, rows: Sequence[Batch], updates: int) -> Callable[[], int]:
        """Makes so many updates at each call, and tells of how many rows; `rows` have inputs and labels."""
        self._bert.train()
        self._scorer.train()
        batches = itertools.cycle(_shuffled(list(_batches(rows, _TOKENS))))

        def train() -> int:
            return sum(self._update(batch) for batch in itertools.islice(batches, updates))

        return train

    def predict(self, rows: Sequence[ArticleRow], tokens: int) -> None:
        """Scores the sentences of rows, in batches of so many places."""
        self._bert.eval()
        self._scorer.eval()
        with torch.inference_mode():
            for batch in _batches([row.inputs for row in rows], tokens):
                self._scores(*_padded(batch))

    def _update(self, rows: Sequence[Batch]) -> int:
        ids, types, positions, is_sentence = _padded(rows)
        labels = torch.zeros(positions.shape)
        for number, row in enumerate(rows):
            found = row["labels"][row["sentence_starts"] == 1]
            labels[number, : len(found)] = torch.from_numpy(found)
        losses = self._loss(self._scores(ids, types, positions, is_sentence), labels) * is_sentence
        self._optimizer.zero_grad()
        (losses.sum() / losses.numel()).backward()
        self._optimizer.step()
        return len(rows)

    def _scores(
        self, ids: torch.Tensor, types: torch.Tensor, positions: torch.Tensor, is_sentence: torch.Tensor
    ) -> torch.Tensor:
        states = self._bert(ids, token_type_ids=types, attention_mask=(ids != 0).long()).last_hidden_state
        sentences = states[torch.arange(len(ids))[:, None], positions] * is_sentence[:, :, None]
        scores: torch.Tensor = self._scorer(sentences, is_sentence)
        return scores


def _batches(rows: Sequence[Batch], tokens: int) -> Iterator[list[Batch]]:
    """Rows of about one length, so many that all of them, padded to the longest, have at most so many places."""
    batch: list[Batch] = []
    for row in sorted(rows, key=lambda row: len(row["input_ids"])):
        if batch and (len(batch) + 1) * len(row["input_ids"]) > tokens:
            yield batch
            batch = []
        batch.append(row)
    yield batch


def _shuffled(batches: list[list[Batch]]) -> list[list[Batch]]:
    random.Random(0).shuffle(batches)
    return batches


def _padded(rows: Sequence[Batch]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids and token types of [B, S], places of [CLS] and which of them are of sentences, of [B, E]."""
    starts = [np.flatnonzero(row["sentence_starts"]) for row in rows]
    ids, types = (_stacked([row[name] for row in rows]) for name in ("input_ids", "token_type_ids"))
    return ids, types, _stacked(starts), _stacked([np.ones(len(found)) for found in starts]).float()


def _stacked(rows: Sequence[np.ndarray]) -> torch.Tensor:
    tensors = [torch.from_numpy(np.asarray(row, np.int64)) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)
