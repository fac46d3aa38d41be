"""The base class of data without training rows, whose texts are read again in each evaluation."""

import abc
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from bertjax.contract import Batch, Data, RowIndices


class EvaluationData(Data):
    """Data that are validation examples alone. They need no preparation, and there are no batches."""

    is_prepared = True

    @abc.abstractmethod
    def key(self) -> Any:
        """Returns a JSON-serializable description of the rows and their vocabulary."""

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.key()).encode()).hexdigest()

    def prepare(self) -> None:
        """Does nothing."""

    def batches(self, split: str, start: int, rows: RowIndices) -> Iterator[Batch]:
        return iter(())
