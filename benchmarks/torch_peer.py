"""A typical pretraining step on PyTorch: `transformers.BertForPreTraining` with AdamW."""

import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import transformers

from benchmarks.common import Shape
from bertjax.configs.sizes import SIZES

_IGNORED = -100


class TorchStep:
    """Forward and backward pass, clipping by the global norm, and fused AdamW, on batches that are on the device.

    Dropout is 0.1, and attention is transformers' default (sdpa). The masked-LM head of `BertForPreTraining` computes
    logits at all positions, also at those that are not predicted. `strong` removes what costs time without need.
    """

    def __init__(
        self,
        shape: Shape,
        batches: Sequence[Mapping[str, np.ndarray]],
        *,
        compiled: bool,
        bfloat16: bool,
        strong: bool = False,
    ) -> None:
        """Initializes the model and makes one update, which compiles it if `compiled`.

        Args:
          shape: the model and its batch.
          batches: the batches of our step, with one sequence per row.
          compiled: whether to use `torch.compile`.
          bfloat16: whether to use autocast; parameters stay in float32.
          strong: whether to compute logits at the predicted positions only, without dropout of attention weights and
            without a mask of the padding, so that attention can use flash kernels.
        """
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        torch.manual_seed(0)
        layers, hidden = SIZES[shape.size]
        config = transformers.BertConfig(
            vocab_size=shape.vocab_size,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 64,
            intermediate_size=4 * hidden,
            attention_probs_dropout_prob=0.0 if strong else 0.1,
        )
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        bert = transformers.BertForPreTraining(config)
        model = (PredictedOnly(bert) if strong else bert).train()
        model.to(device=torch.device(self._device))
        self._parameters = list(model.parameters())
        self._optimizer = torch.optim.AdamW(_groups(model), lr=1e-4, eps=1e-6, fused=True)
        self._model = torch.compile(model, dynamic=False) if compiled else model
        self._autocast = torch.autocast(self._device, torch.bfloat16, enabled=bfloat16)
        convert = predicted_batch if strong else torch_batch
        self._batches = [
            {name: torch.tensor(array, device=self._device) for name, array in convert(batch).items()}
            for batch in batches
        ]
        self._index = 0
        self()
        if self._device == "cuda":
            torch.cuda.empty_cache()  # other cases need the memory while this one waits for its turn

    def __call__(self, times: int = 1) -> None:
        """Makes `times` updates, and waits for the last."""
        for _ in range(times):
            with self._autocast:
                result = self._model(**self._batches[self._index % len(self._batches)])
                loss = result if isinstance(result, torch.Tensor) else result.loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            self._index += 1
        if self._device == "cuda":
            torch.cuda.synchronize()

    def peak_bytes(self) -> int:
        """Returns the largest memory of arrays on the GPU since the start; 0 on a CPU."""
        return torch.cuda.max_memory_allocated() if self._device == "cuda" else 0


class PredictedOnly(torch.nn.Module):
    """The loss of `BertForPreTraining`, with logits at the predicted positions only and without an attention mask."""

    def __init__(self, bert: transformers.BertForPreTraining) -> None:
        super().__init__()
        self._bert = bert

    def forward(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor,
        predicted: torch.Tensor,
        labels: torch.Tensor,
        next_sentence_label: torch.Tensor,
    ) -> torch.Tensor:
        """Returns the loss of a batch that `predicted_batch` made."""
        bert = self._bert.bert
        # Under torch.compile, calling `bert` would make a mask of all positions, with which attention is slower.
        hidden = bert.encoder(bert.embeddings(input_ids, token_type_ids)).last_hidden_state
        words, order = self._bert.cls(hidden.flatten(0, 1)[predicted], bert.pooler(hidden))
        entropy = torch.nn.functional.cross_entropy
        return entropy(words, labels, ignore_index=_IGNORED) + entropy(order, next_sentence_label)


def predicted_batch(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Converts our batch to the arguments of `PredictedOnly`; `predicted` are indices into the flat batch."""
    arrays = torch_batch(batch)
    length = batch["input_ids"].shape[1]
    starts = length * np.arange(len(batch["input_ids"]))[:, None]
    labels = np.where(batch["masked_weights"] != 0, batch["masked_labels"], _IGNORED)
    return {
        **{name: arrays[name] for name in ("input_ids", "token_type_ids", "next_sentence_label")},
        "predicted": (starts + batch["masked_positions"]).reshape(-1),
        "labels": labels.reshape(-1).astype(np.int64),
    }


def torch_batch(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Converts our batch, with one sequence per row, to the names and labels of transformers."""
    labels = np.full(batch["input_ids"].shape, _IGNORED)
    rows, columns = np.nonzero(batch["masked_weights"])
    labels[rows, batch["masked_positions"][rows, columns]] = batch["masked_labels"][rows, columns]
    next_sentence = batch.get("next_sentence_labels", np.zeros(len(labels)))  # the model always has this head
    return {
        "input_ids": batch["input_ids"].astype(np.int64),
        "token_type_ids": batch["token_type_ids"].astype(np.int64),
        "attention_mask": (batch["segment_ids"] != 0).astype(np.int64),
        "labels": labels,
        "next_sentence_label": next_sentence.reshape(-1).astype(np.int64),
    }


def matrix_product(m: int, k: int, n: int) -> Callable[[], torch.Tensor]:
    """Returns a call of a float32 product of [m, k] and [k, n] on the CPU."""
    a, b = (torch.rand(size) for size in ((m, k), (k, n)))
    return lambda: a @ b


def _groups(model: torch.nn.Module) -> list[dict]:
    """Returns parameter groups with weight decay on matrices only, as in BERT's code."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    return [
        {"params": decayed, "weight_decay": 0.01},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
