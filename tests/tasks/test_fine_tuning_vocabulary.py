"""The vocabulary of fine-tuning: the fingerprint of rows and vocabulary, the copy in the folder, and errors."""

import gzip
import json
import shutil

import pytest

from bertjax.config import build_part
from bertjax.configs.classification import get_config
from bertjax.data.text.vocabularies import SPECIALS
from bertjax.data.text.vocabulary_config import load_wordpiece
from bertjax.data.text.wordpiece import WordPiece
from bertjax.errors import UserError
from bertjax.experiments import classification
from tests.tiny import check_message

VOCABULARY = (*SPECIALS, "a", "b", "##c")
ROWS = "sentence\tlabel\na b\t1\nb c\t0\n"


@pytest.fixture
def home(tmp_path):
    """A folder with `rows.tsv`, `more.tsv`, `vocab.txt`, and `uncased`, a folder with a vocabulary and its casing."""
    home = tmp_path / "home"
    WordPiece(VOCABULARY, lowercase=True).save(home / "uncased")
    shutil.copy(home / "uncased" / "vocab.txt", home)
    (home / "rows.tsv").write_text(ROWS)
    (home / "more.tsv").write_text("sentence\tlabel\na\t1\n")
    return home


def text(home, folder=None, vocab="vocab.txt", lowercase=True, source="rows.tsv", valid_source=""):
    config = get_config("tiny")
    config.update(metrics=("accuracy",))
    config.data.update(lowercase=lowercase, seq_len=32)
    for key, name in {"source": source, "valid_source": valid_source, "vocab_file": vocab}.items():
        config.data[key] = name and str(home / name)
    tree = json.loads(config.to_json())
    return classification.Data(build_part(classification.Config, tree), folder or home / "kept", None)


def told(call):
    with pytest.raises(UserError) as error:
        call()
    return f"error: {error.value}"


def test_the_fingerprint_depends_on_content_and_not_on_folders(home, tmp_path):
    before = text(home).fingerprint
    assert len(before) == 64
    moved = shutil.copytree(home, tmp_path / "elsewhere")
    assert text(moved, folder=tmp_path / "other").fingerprint == before
    assert text(home, vocab="uncased").fingerprint == before  # the same tokens and casing, from a folder


@pytest.mark.parametrize("what", ["row", "name", "compression", "token", "casing", "held-out rows", "their key"])
def test_the_fingerprint_depends_on(home, what):
    both = {"valid_source": "more.tsv"}
    given = text(home, **both)
    before = given.fingerprint
    if what == "row":
        (home / "more.tsv").write_text("sentence\tlabel\na\t0\n")
    elif what == "name":  # the suffix determines the separator
        (home / "rows.tsv").rename(home / "rows.csv")
        given = text(home, source="rows.csv", **both)
    elif what == "compression":
        (home / "rows.tsv.gz").write_bytes(gzip.compress(ROWS.encode()))
        given = text(home, source="rows.tsv.gz", **both)
    elif what == "token":
        (home / "vocab.txt").write_text("\n".join((*SPECIALS, "b", "a", "##c")) + "\n")
    elif what == "casing":
        given = text(home, lowercase=False, **both)
    elif what == "held-out rows":
        given = text(home)
    else:
        given = text(home, source="more.tsv", valid_source="rows.tsv")
    assert given.fingerprint != before


def test_the_vocabulary_is_kept_in_the_folder(home):
    given = text(home)
    given.write_vocabulary()
    assert WordPiece.load(home / "kept").vocab == VOCABULARY
    assert WordPiece.load(home / "kept").lowercase is True
    before = (home / "kept" / "vocab.txt").read_bytes()
    given.write_vocabulary()  # again
    assert (home / "kept" / "vocab.txt").read_bytes() == before
    assert {path.name for path in (home / "kept").iterdir()} == {"vocab.txt", "tokenizer.json", "tokenizer_config.json"}


def test_a_run_keeps_the_maximum_word_length_that_it_started_with(home):
    """Runs from before the folder's own value was read have 200."""
    given = text(home, vocab="uncased")
    given.write_vocabulary()
    before = given.fingerprint
    WordPiece(VOCABULARY, lowercase=True, max_word_chars=100).save(home / "uncased")
    given.write_vocabulary()
    assert WordPiece.load(home / "kept").max_word_chars == 200
    assert given.fingerprint == before


@pytest.mark.parametrize("ask", ["write", "fingerprint"])
def test_a_missing_source_or_vocabulary_is_an_error(home, ask):
    def call(given):
        return lambda: given.write_vocabulary() if ask == "write" else given.fingerprint

    for change, what, got, expected, fix in (
        ("source", "data.source", "nothing", "rows to train on", "--config.data.source=FILE"),
        ("vocab", "data.vocab_file", "nothing, and no init_from", "a vocab.txt, or", "vocab_file or --config.init"),
    ):
        message = told(call(text(home, **{change: ""})))
        check_message(message, what=f"config key {what}", got=got, expected=expected, fix=fix)
    assert not (home / "kept").exists()


def test_a_folder_of_another_casing_is_an_error(home):
    expected = r"expected True, the casing of the tokenizer in .*--config\.data\.lowercase=True"
    with pytest.raises(UserError, match=rf"data\.lowercase: got False; {expected}"):
        load_wordpiece(home / "uncased", lowercase=False)


def test_files_and_folders_of_google_accept_any_casing(home):
    (home / "bert_config.json").write_text(json.dumps({}))
    for path in (home, home / "vocab.txt"):
        for lowercase in (True, False):
            assert load_wordpiece(path, lowercase).lowercase is lowercase


def test_the_inner_folder_of_older_sentence_transformers_is_used(home):
    (home / "outer").mkdir()
    shutil.move(home / "uncased", home / "outer" / "0_Transformer")
    assert load_wordpiece(home / "outer", lowercase=True).vocab == VOCABULARY
