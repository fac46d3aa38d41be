import pytest
import tensorflow_datasets as tfds

from bertjax.data.codecs.translation.parallel_text import Pair, ParallelText, ParallelTextConfig
from bertjax.errors import UserError
from tests.data.files import write
from tests.experiments.commands import settings_of


def text(split="test", seed=0, **changes):
    """Opens pairs; by default, those of `a.en` and `a.de` as test data."""
    values = {"source": "a.en", "target": "a.de", "test_source": "a.en", "test_target": "a.de", "valid_fraction": 0.5}
    return ParallelText(settings_of(ParallelTextConfig, "translation", **{**values, **changes}), split, seed)


def table(source, **changes):
    columns = {"source_column": "en", "target_column": "de"}
    return text(test_source=source, test_target="", **{**columns, **changes})


def texts(parallel):
    return [(pair.source, pair.target) for pair in parallel.pairs()]


@pytest.fixture
def files():
    write("a.en", "\ufeffa cat\n two cats \r\nthe \u2028 end\n")
    write("a.de", "eine Katze\nzwei Katzen\nda\u0308s Ende")


def test_files_aligned_by_line(files):
    assert list(text().pairs()) == [
        Pair("a cat", "eine Katze", "a.en:1 and a.de:1"),
        Pair("two cats", "zwei Katzen", "a.en:2 and a.de:2"),
        Pair("the \u2028 end", "da\u0308s Ende", "a.en:3 and a.de:3"),
    ]


def test_globs_lists_and_gzip_keep_their_order(files):
    write("b1.en.gz", "one\n")
    write("b2.en", "two\n")
    write("b1.de", "eins\n")
    write("b2.de.gz", "zwei\n")
    expected = [("one", "eins"), ("two", "zwei"), ("a cat", "eine Katze")]
    assert texts(text(test_source="b*.en*, a.en", test_target="b*.de*,a.de"))[:3] == expected


def test_several_references_of_a_source(files):
    write("b.de", "Katze\nzwei\nEnde\n")
    first, *_ = text(test_target="a.de,b.de").pairs()
    assert first == Pair("a cat", "eine Katze", "a.en:1 and a.de:1 and b.de:1", ("Katze",))
    (pair,) = table(str(write("a.jsonl", '{"en": "a cat", "de": ["eine Katze", " Katze"]}\n'))).pairs()
    assert (pair.target, pair.references) == ("eine Katze", ("Katze",))
    write("b.de", "Katze\n")
    with pytest.raises(UserError, match=r"a\.en and a.de and b.de: got 3 and 3 and 1 lines; .* partner is a.en:2"):
        list(text(test_target="a.de,b.de").pairs())
    with pytest.raises(UserError, match="got 1 and 2 names separated by commas"):
        text("train", target="a.de,b.de")


def test_a_table():
    write("a.tsv", 'en\tid\tde\n "a cat\t1\teine Katze"\n')
    assert list(table("a.tsv").pairs()) == [Pair('"a cat', 'eine Katze"', "a.tsv:2")]
    write("a.csv", 'de,en\n"ja, ja",yes\n')
    write("a.jsonl.gz", '{"en": "no", "de": "nein", "n": 1}\n')
    assert texts(table("a.csv,a.jsonl.gz")) == [("yes", "ja, ja"), ("no", "nein")]
    variants = '<tuv xml:lang="en-US"><seg>one </seg></tuv><tuv xml:lang="DE"><seg>eins</seg></tuv>'
    write("a.tmx", f"<tmx><tu>{variants}</tu></tmx>")
    assert list(table("a.tmx").pairs()) == [Pair("one", "eins", "a.tmx:1")]
    write("a.txt", "a ||| b\n")
    without = {"header": False, "separator": " ||| ", "source_column": "0", "target_column": "1"}
    assert texts(table("a.txt", **without)) == [("a", "b")]


def test_tfds():
    with tfds.testing.mock_data(num_examples=3, policy=tfds.testing.MockPolicy.USE_CODE):
        pairs = list(table("tfds:wmt14_translate/de-en:train").pairs())
    assert [pair.where for pair in pairs] == [f"tfds:wmt14_translate/de-en:train record {n}" for n in range(3)]
    assert all(isinstance(pair.source, str) and pair.target for pair in pairs)


def test_prefixes(files):
    write("a.fr", "un chat\ndeux chats\nfin\n")
    many = text(
        test_source="a.en,a.en", test_target="a.de,a.fr", source_prefix=("<de> ", "<fr> "), target_prefix=("> ",)
    )
    assert texts(many)[::3] == [("<de> a cat", "> eine Katze"), ("<fr> a cat", "> un chat")]
    assert texts(text(source_prefix=("to German: ",)))[0] == ("to German: a cat", "eine Katze")
    write("a.tsv", "en\tde\nx\ty\n")
    write("b.tsv", "en\tde\nv\tw\n")
    assert texts(table("a.tsv,b.tsv", target_prefix=("1", "2"), source_prefix=("",))) == [("x", "1y"), ("v", "2w")]


def test_validation_pairs_share_no_source_with_training_pairs():
    write("a.en", "".join(f"s{i % 300}\n" for i in range(900)))
    write("a.de", "".join(f"t{i}\n" for i in range(900)))
    train, valid = (texts(text(split, valid_fraction=0.1, source_prefix=("p ",))) for split in ("train", "valid"))
    assert sorted(train + valid, key=lambda pair: int(pair[1][1:])) == [(f"p s{i % 300}", f"t{i}") for i in range(900)]
    assert not {source for source, _ in train} & {source for source, _ in valid}
    assert 40 < len(valid) < 150
    assert texts(text("valid", valid_fraction=0.1, seed=1)) != texts(text("valid", valid_fraction=0.1))
    # Adding pairs does not move others to another split.
    write("a.en", "".join(f"s{i % 300}\n" for i in range(1200)))
    write("a.de", "".join(f"t{i}\n" for i in range(1200)))
    assert texts(text("valid", valid_fraction=0.1, source_prefix=("p ",)))[: len(valid)] == valid


def test_validation_pairs_are_not_training_pairs_in_the_other_direction():
    write("a.en", "".join(f"s{i}\n" for i in range(900)))
    write("a.de", "".join(f"t{i}\n" for i in range(900)))
    both = {"source": "a.en,a.de", "target": "a.de,a.en", "source_prefix": ("<de> ", "<en> "), "valid_fraction": 0.1}
    train, valid = ([pair[0][5:] for pair in texts(text(split, **both))] for split in ("train", "valid"))
    assert 100 < len(valid) < 300 and len(train) > 1200
    turned = {one: other for i in range(900) for one, other in ((f"s{i}", f"t{i}"), (f"t{i}", f"s{i}"))}
    assert not {turned[source] for source in valid} & {*train}


def test_validation_pairs_can_have_their_own_source(files):
    write("v.en", "x\n")
    write("v.de", "y\n")
    given_ = {"valid_source": "v.en", "valid_target": "v.de", "valid_fraction": 0.0}
    assert texts(text("valid", **given_)) == [("x", "y")]
    assert len(texts(text("train", **given_))) == 3


@pytest.mark.parametrize(
    ("english", "german", "got"),
    [
        (3, 5, r"3 and 5 lines; the first without a partner is a\.de:4"),
        (1200, 2, r"1,200 and 2 lines; the first without a partner is a\.en:3"),
    ],
)
@pytest.mark.parametrize("on_bad_row", ["stop", "skip"])
def test_files_of_different_lengths_are_an_error(english, german, got, on_bad_row):
    write("a.en", "x\n" * english)
    write("a.de", "y\n" * german)
    expected = "expected the same number of lines in all files, aligned line by line. Fix: find where the"
    with pytest.raises(UserError, match=rf"a\.en and a\.de: got {got}; {expected}"):
        texts(text(on_bad_row=on_bad_row))


@pytest.mark.parametrize(
    ("bad", "got"),
    [
        (b" \t", r"a\.de:2: got a line without text; expected a text, the translation of a\.en:2\. Fix: add the text "),
        (b"caf\xe9", r"a\.de:2: got byte 0xe9 at byte offset 5, not valid UTF-8"),
        (b"x" * (2**20 + 1), r"a\.de:2: got a line that is too long; expected at most 1,048,576 bytes"),
    ],
)
def test_bad_lines_are_errors_or_skipped(bad, got, caplog):
    write("a.en", b"a\nb\nc\n")
    write("a.de", b"A\n" + bad + b"\nC\n")
    with pytest.raises(UserError, match=rf"{got}.*on_bad_row=skip"):
        texts(text())
    with caplog.at_level("INFO", "bertjax"):
        assert texts(text(on_bad_row="skip")) == [("a", "A"), ("c", "C")]
    assert "2 pairs, 1 bad pairs skipped" in caplog.text
    flipped = {"test_source": "a.de", "test_target": "a.en"}
    with pytest.raises(UserError, match=r"a\.de:2: got "):
        texts(text(**flipped))
    assert texts(text(on_bad_row="skip", **flipped)) == [("A", "a"), ("C", "c")]


@pytest.mark.parametrize(
    ("row", "got"),
    [
        ('{"en": "x"}', r"a row without column 'de'; its columns: 'en'; expected the column of"),
        ('{"en": "x", "de": 3}', "int in column 'de'; expected text"),
        ('{"en": "x", "de": "\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_bad_rows_are_errors(row, got):
    write("a.jsonl", f'{{"en": "x", "de": "y"}}\n{row}\n')
    with pytest.raises(UserError, match=rf"a\.jsonl:2: got {got}.*on_bad_row=skip"):
        texts(table("a.jsonl"))
    assert texts(table("a.jsonl", on_bad_row="skip")) == [("x", "y")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_source": "", "test_target": ""}, "data.test_source: got nothing; expected pairs.*--config.data.test_s"),
        (
            {"test_target": ""},
            r"data\.test_source and data\.test_target: got 'a\.en' and '', with the columns '' and ''; expected a "
            r"table with .*, or two files aligned by line\. Fix: set data\.test_target, or set the columns",
        ),
        ({"source_column": "en", "target_column": "de"}, r"got 'a\.en' and 'a\.de', with the columns 'en' and 'de'"),
        ({"source_column": "en"}, r"data\.\{source_column,target_column\}: got 'en' and ''; expected two different"),
        ({"test_source": "a.en,"}, r"data\.test_source and data\.test_target: got 2 and 1 names separated by commas"),
        ({"test_source": "a.*"}, r"data\.test_source=a\.\* and data\.test_target=a\.de: got 2 and 1 files; expected"),
        ({"test_source": "a.en,*.en", "test_target": "a.de,a.de"}, r"data\.test_source=a\.en,\*\.en: got a\.en with"),
        ({"source_prefix": ("a", "b")}, r"data\.source_prefix: got 2 prefixes for 1 source\(s\) in"),
        (
            {"test_source": "a.en,a.en", "test_target": "a.de,a.de", "target_prefix": ("a", "b")},
            r"data\.target_prefix: got 2 prefixes, but no data\.source_prefix; expected sources from which",
        ),
        ({"test_source": "tfds:a", "test_target": "tfds:b"}, r"data\.test_source: got tfds:a; expected two columns"),
        ({"valid_target": "a.de"}, r"data\.valid_source: got nothing, but data\.valid_target=a\.de; expected the so"),
    ],
)
def test_wrong_configs_are_errors(files, changes, message):
    with pytest.raises(UserError, match=message):
        text(**changes)


def test_no_pairs_are_an_error():
    write("a.en", "\n\n")
    write("a.de", "\n\n")
    message = r"data\.test_source=a\.en: got no pairs for the split test, 2 bad pairs skipped;"
    with pytest.raises(UserError, match=message):
        texts(text(on_bad_row="skip"))
    write("a.en", "x\nx\n")
    write("a.de", "y\nz\n")
    with pytest.raises(UserError, match=r"no pairs for the split (train|valid) among \d+; .*the same source share"):
        texts(text("train")), texts(text("valid"))  # a single source is in one split


def test_different_texts_have_different_fingerprints(files):
    before = text().fingerprint()
    assert before == text(valid_fraction=0.1).fingerprint()
    write("a.fr", "un\ndeux\ntrois\n")
    prints = [
        before,
        text("train").fingerprint(),
        text("valid").fingerprint(),
        text("valid", seed=1).fingerprint(),
        text("valid", valid_fraction=0.1).fingerprint(),
        text(source_prefix=("x",)).fingerprint(),
        text(target_prefix=("x",)).fingerprint(),
        text(on_bad_row="skip").fingerprint(),
        text(test_source="a.en,a.en", test_target="a.de,a.fr").fingerprint(),
    ]
    write("a.de", "eine Katze\nzwei\ndrei\n")
    prints.append(text().fingerprint())
    assert len(set(map(str, prints))) == len(prints)
