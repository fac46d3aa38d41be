import gzip

import pytest

from bertjax.data.readers import tables, tmx
from bertjax.data.readers.lines import BadRows
from bertjax.errors import UserError

HEAD = '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE tmx SYSTEM "none.dtd">\n<tmx version="1.4"><header/><body>\n'
UNIT = """<tu><note>a note</note>
<tuv xml:lang="EN-us"><prop type="x">a property</prop>
<seg>A <bpt i="1">&lt;b&gt;<sub>alt</sub></bpt>big<ept i="1"/> <hi>c<it>x</it>at</hi> &amp; Ü</seg></tuv>
<tuv lang="de"><seg>Eine Katze<ph>x</ph></seg></tuv></tu>
"""


def unit(*variants):
    found = "".join(f'<tuv xml:lang="{language}"><seg>{text}</seg></tuv>' for language, text in variants)
    return f"<tu>{found}</tu>\n"


def memory(*units):
    return HEAD + "".join(units) + "</body></tmx>\n"


def read(path, on_bad_row="stop"):
    """The English texts of a file, as prediction and translation read them."""
    bad_rows = BadRows(on_bad_row)

    def text(row):
        return tables.text_of(row, "en", "data.source_column"), row.where

    return list(bad_rows.sift(map(text, tables.read_input(str(path), "", ("en",), True, "", bad_rows))))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_units_are_rows_of_texts_by_language(tmp_path, encoding):
    path = tmp_path / "a.TMX.gz"
    text = memory(UNIT, unit(("en", "one"), ("en-GB", "two"))).replace("utf-8", encoding)
    path.write_bytes(gzip.compress(text.encode(encoding)))
    assert read(path) == [("A big cat & Ü", f"{path}:4"), ("one", f"{path}:8")]
    (first, _) = tables.read_rows(str(path), "data.source", True, "", BadRows("stop"))
    assert dict(first.values) == {"EN-us": "A big cat & Ü", "de": "Eine Katze"}


@pytest.mark.parametrize(
    ("bad", "got"),
    [
        (unit(("de", "x")), "got a row without column 'en'; its columns: 'de'"),
        (unit(("en", "x"), ("en", "y")), "got two <tuv> of the language 'en'; .*Fix: delete one of them"),
        (unit(("en-GB", "x"), ("en_US", "y")), "got the languages 'en-GB' and 'en_US'; .*Fix: name one of them"),
        (unit(("", "x")), "got a <tuv> without xml:lang"),
        (unit(("en", " ")), "got an empty text in column 'en'"),
    ],
)
def test_bad_units_are_bad_rows(tmp_path, bad, got):
    path = tmp_path / "a.tmx"
    path.write_text(memory(bad, unit(("EN", "good"))))
    with pytest.raises(UserError, match=f"^{path}:4: {got}"):
        read(path)
    assert read(path, "skip") == [("good", f"{path}:5")]


LAUGHS = '<!DOCTYPE tmx [<!ENTITY a "ha">\n<!ENTITY b "&a;&a;">]><tmx><body><tu>&b;</tu></body></tmx>'


@pytest.mark.parametrize(
    ("text", "got"),
    [
        (memory(unit(("en", "&unknown;"))), ":4: got the entity 'unknown'"),
        (LAUGHS, ":1: got the entity 'a'"),
        ("<tmx>\n<body><tu></body>", r":2: got invalid XML \(mismatched tag: line 2, column 12\)"),
        ("<tmx>\n", r":2: got invalid XML \(no element found"),
        ('<?xml version="1.0" encoding="shift_jis"?><tmx/>', r":1: got invalid XML \(multi-byte encodings"),
        ("<xliff/>", ":1: got XML with the root <xliff>; expected a TMX file. Fix: convert it"),
    ],
)
def test_other_files_are_refused(tmp_path, text, got):
    path = tmp_path / "a.tmx"
    path.write_text(text)
    with pytest.raises(UserError, match=f"^{path}{got}"):
        read(path, "skip")


def test_a_unit_has_a_limit(tmp_path):
    path = tmp_path / "a.tmx"
    path.write_text(memory(*[unit(("en", "x" * 999))] * 500))
    assert len(list(tmx.read_units(path, 2**17))) == 500
    path.write_text(memory(unit(("en", "x" * 2**20))))
    with pytest.raises(UserError, match="got more than 131,072 bytes without the end of a translation unit"):
        list(tmx.read_units(path, 2**17))
