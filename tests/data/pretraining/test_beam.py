"""Tests that Beam's local runner prepares the same text as one process."""

import hashlib

import pytest

from bertjax.data.beam import BeamConfig
from bertjax.data.pretraining.corpus import SPLITS, Corpus, Preparation
from bertjax.data.readers import sources
from tests.data.folders import TRAINED, digests, read_whole

HERE = BeamConfig("DirectRunner")


@pytest.mark.slow
def test_beam_prepares_what_one_process_prepares(tiny_documents, make_config, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_SHARE_BYTES", 1)
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(15):  # so that there are more than ten files of records
        group = tiny_documents[2 * number : 2 * number + 2]
        (folder / f"{number:02d}.txt").write_text("\n\n".join("\n".join(lines) for lines in group) + "\n")
    opened = []
    for name, config in (("local", BeamConfig()), ("beam", HERE)):
        settings = make_config(
            **TRAINED, source=f"{folder}/*.txt", prepared_dir=str(tmp_path / name), workers=2, beam=config
        )
        prepared = Preparation(settings, tmp_path)
        prepared.run()
        opened.append(Corpus(prepared.folder))
    one, two = (digests(corpus.folder) for corpus in opened)
    names = ("records/", "manifest.json")  # the manifest has the sizes of the records' files
    assert {k: v for k, v in one.items() if not k.startswith(names)} == {
        k: v for k, v in two.items() if not k.startswith(names)
    }
    assert sum("train.array_record" in name for name in two) > 10
    for split in SPLITS:
        assert hash_of(opened[0], split) == hash_of(opened[1], split)


def hash_of(corpus, split):
    """Returns the digest of all records in order."""
    digest = hashlib.sha256()
    for ids in read_whole(corpus.splits[split]):
        digest.update(len(ids).to_bytes(4) + ids.tobytes())
    return digest.hexdigest()
