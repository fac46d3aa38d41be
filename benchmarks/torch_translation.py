"""Typical training of a translation model on PyTorch: `torch.nn.Transformer`, embeddings, Adam, Noam schedule."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from bertjax.contract import Batch
from bertjax.models.embeddings import sinusoids
from bertjax.models.encoder_decoder import EncoderDecoderConfig


class TorchTranslationStep:
    """The training step of the same model on the same batches: joint embeddings, tied output, smoothed labels."""

    def __init__(
        self, config: EncoderDecoderConfig, optimizer: Mapping[str, Any], smoothing: float, start: int
    ) -> None:
        """Initializes from the model, the keys of `config.optimizer`, label smoothing, and the decoder's first id."""
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self._scale, self._start = config.hidden_size**0.5, start
        self._words = torch.nn.Embedding(config.target_vocab_size, config.hidden_size)
        self._places = torch.tensor(sinusoids(config.max_positions, config.hidden_size, "interleaved"))
        self._model = torch.nn.Transformer(
            config.hidden_size,
            config.num_heads,
            config.num_layers,
            config.num_decoder_layers,
            config.intermediate_size,
            dropout=config.dropout,
            activation=config.activation,
            batch_first=True,
        )
        self._dropout = torch.nn.Dropout(config.dropout)
        self._loss = torch.nn.CrossEntropyLoss(ignore_index=-1, label_smoothing=smoothing)
        parameters = [*self._words.parameters(), *self._model.parameters()]
        betas = (optimizer["beta1"], optimizer["beta2"])
        self._optimizer = torch.optim.Adam(parameters, optimizer["learning_rate"], betas, optimizer["eps"])
        warmup = optimizer["warmup_steps"]
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: min((step + 1) / warmup, (warmup / (step + 1)) ** 0.5)
        )

    def __call__(self, batch: Batch) -> None:
        """Makes an update."""
        tensors = {name: torch.from_numpy(np.asarray(values)).long() for name, values in batch.items()}
        labels, is_token = tensors["labels"], tensors["target_segment_ids"] != 0
        fed = torch.roll(labels, 1, dims=1)
        fed[:, 0] = self._start
        padding = tensors["segment_ids"] == 0
        padding[:, 0] = False  # the softmax of a fully masked row would be NaN
        length = labels.shape[1]
        hidden = self._model(
            self._embedded(tensors["input_ids"]),
            self._embedded(fed),
            tgt_mask=torch.triu(torch.ones(length, length, dtype=torch.bool), 1),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        logits = hidden @ self._words.weight.T
        loss = self._loss(logits.flatten(0, 1), labels.masked_fill(~is_token, -1).flatten())
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._schedule.step()

    def _embedded(self, ids: torch.Tensor) -> torch.Tensor:
        return self._dropout(self._words(ids) * self._scale + self._places[: ids.shape[1]])
