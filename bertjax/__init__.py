"""BERT-family research in JAX: pretraining, fine-tuning, translation and summarization.

>>> import bertjax
>>> bert = bertjax.load("FOLDER")  # published weights or a run  # doctest: +SKIP
>>> bert.predict(["Paris is the [MASK] of France."])  # doctest: +SKIP
"""

from bertjax.loading import load

__all__ = ["load"]
