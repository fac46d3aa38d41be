"""Typical fine-tuning and prediction on PyTorch: the `Trainer` and the pipeline of transformers."""

import os
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from bertjax.data.codecs.labeled_text import LabeledText

_LENGTH = 128


class TorchTraining:
    """The `Trainer` with dynamic padding and default settings, except batch size, learning rate, dtype and output."""

    def __init__(
        self,
        folder: str,
        rows: Sequence[LabeledText],
        batch_size: int,
        learning_rate: float,
        updates: int,
        bfloat16: bool = False,
    ) -> None:
        """Initializes training on the GPU, if PyTorch finds one.

        Args:
          folder: the folder of the encoder.
          rows: the training rows.
          batch_size, learning_rate: the recipe.
          updates: the number of updates per call.
          bfloat16: whether to use autocast.
        """
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        transformers.logging.set_verbosity_error()
        names = sorted({str(row.label) for row in rows})
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=len(names))
        self._rows = [self._encoded(row, names) for row in rows]
        self._folder = tempfile.TemporaryDirectory()
        self._arguments = transformers.TrainingArguments(
            output_dir=self._folder.name,
            per_device_train_batch_size=batch_size,
            learning_rate=learning_rate,
            max_steps=updates,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            use_cpu=not torch.cuda.is_available(),
            bf16=bfloat16,
        )

    def __call__(self) -> None:
        """Makes updates."""
        collator = transformers.DataCollatorWithPadding(self._tokenizer)
        transformers.Trainer(
            model=self._model, args=self._arguments, train_dataset=self._rows, data_collator=collator
        ).train()

    def _encoded(self, row: LabeledText, names: Sequence[str]) -> dict[str, Any]:
        encoded = self._tokenizer(row.first, row.second, truncation=True, max_length=_LENGTH)
        return {**encoded, "labels": names.index(str(row.label))}


class TorchPrediction:
    """The text-classification pipeline."""

    def __init__(self, folder: str, texts: Sequence[str], bfloat16: bool = False) -> None:
        """Initializes from the encoder's folder, to which a random classifier is added, the texts and the dtype."""
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
        model.to(dtype=torch.bfloat16 if bfloat16 else torch.float32)
        self._pipeline = transformers.pipeline(
            "text-classification",
            model=model,
            tokenizer=tokenizer,
            top_k=None,
            device=0 if torch.cuda.is_available() else -1,
        )
        self._texts = list(texts)

    def __call__(self, batch_size: int) -> None:
        """Labels all texts."""
        self._pipeline(self._texts, batch_size=batch_size, truncation=True, max_length=_LENGTH)
