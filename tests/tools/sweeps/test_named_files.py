"""Files that a config names are checked before a sweep starts."""

import pytest

from bertjax.errors import UserError
from bertjax.tools.sweeps.named_files import check_named_files


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"source": "gone.txt"}, r"data\.source=gone\.txt: got a path that does not exist"),
        ({"source": "here.txt", "valid_source": "gone*.txt"}, r"data\.valid_source=gone\*\.txt: got a pattern"),
        ({"source": "here.txt", "target": "here.txt,gone.txt"}, r"data\.target=gone\.txt: got a path"),
        ({"test_source": "tfds:no_such_data"}, r"data\.test_source=tfds:no_such_data"),
        ({"source": "some"}, r"data\.source=some: got a folder"),
        ({"source": "here.txt", "vocab_file": "gone"}, r"data\.vocab_file: got gone, which does not exist"),
    ],
)
def test_missing_files_are_reported(tmp_path, monkeypatch, data, message):
    (tmp_path / "here.txt").touch()
    (tmp_path / "some").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        check_named_files(data)


@pytest.mark.parametrize(
    "data",
    [
        {"source": "documentation", "valid_source": "", "vocab_file": ""},
        {"source": "dates", "target": ""},
        {"source": "*.txt", "valid_source": "{workdir}/made.txt", "vocab_file": "some"},
        {"source": "some", "article_field": "article", "test_source": ""},
        {"source": "here.txt,here.txt", "target": "here.txt,here.txt"},  # each file with its own prefix
        {"source": "hf:some,hf:some", "target": ""},
        {"vocab_file": "bert_model.ckpt"},
        {},
    ],
)
def test_existing_files_pass(tmp_path, monkeypatch, data):
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "state.json").write_text('{"_data_files": [{"filename": "state.json"}]}')
    (tmp_path / "here.txt").touch()
    for name in ("here.txt", "some/here.txt", "bert_model.ckpt.index"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    check_named_files(data)
