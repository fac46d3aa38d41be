"""The files of a dataset of TensorFlow Datasets."""

from pathlib import Path

import tensorflow_datasets as tfds


def prepare(folder: Path, features, rows, splits=("train",)) -> list[Path]:
    """Writes the dataset `tiny_text` without its builder, like one copied from another machine; all splits are equal.

    Returns the files of records.
    """
    with tfds.core.registered.skip_registration():

        class TinyText(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("1.2.3")

            def _info(self):
                return tfds.core.DatasetInfo(
                    builder=self, features=tfds.features.FeaturesDict(features), disable_shuffling=True
                )

            def _split_generators(self, dl_manager):
                return {split: self._generate_examples() for split in splits}

            def _generate_examples(self):
                yield from enumerate(rows)

    TinyText(data_dir=folder, file_format="array_record").download_and_prepare()
    return sorted(folder.rglob("*.array_record*"))
