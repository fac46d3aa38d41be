import sysconfig

import pytest

from bertjax.data.readers import documentation
from bertjax.errors import UserError

SOURCE = '''
"""The module does one thing.

It is described here.
"""

def first():
    """Returns the first of all things."""
    def inner():
        "Helps the first function along."

@decorated
class Thing:
    """Holds one thing for you."""
    async def method(self):
        r"""Waits for the thing \\d to come."""

def last(): return "no docstring is here"
'''


@pytest.fixture
def library(tmp_path, monkeypatch):
    (tmp_path / "pydoc_data").mkdir()
    (tmp_path / "pydoc_data/topics.py").write_text("topics = {'with': 'Some topic text.', 'del': 'Not much.'}\n")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Wrapped lines of\na paragraph  are\njoined.", ["Wrapped lines of a paragraph are joined."]),
        ("This is quote-\ndelimited text.", ["This is quote-delimited text."]),
        ("It is a dash --\nnot a hyphen.", ["It is a dash -- not a hyphen."]),
        ("The heading of it\n=================\n\nThe text of it.", ["The text of it."]),
        ("Here is text.\n>>> here is code\nand output\n\nMore text now.", ["Here is text.", "More text now."]),
        ("Here we go::\n\n  some code here\n\n  more of it\n\nBack to text.", ["Here we go:", "Back to text."]),
        ("It is so:\n\n   if this:\n       run(that and it)\n\nText again here.", ["It is so:", "Text again here."]),
        ("assert_stmt ::= 'assert' expression or so on", []),
        ("====  =====\nsome table here\n====  =====\nmore of it\n\nIt has text.", ["It has text."]),
        ("f(x, y[, z]) -> [(int, int), ...]", []),
        ("* one item here\n  goes on\n* the next one\n", ["* one item here goes on", "* the next one"]),
        (
            "There are some:\n  - one item here\nText comes last.",
            ["There are some:", "- one item here", "Text comes last."],
        ),
        ("term of it\n    and the text\nnext term now", ["term of it and the text", "next term now"]),
        ("", []),
    ],
)
def test_paragraphs(text, expected):
    assert documentation.paragraphs(text) == expected


def test_docstrings_come_in_source_order_and_no_module_is_imported(library):
    (library / "b.py").write_text(SOURCE + "\nraise SystemExit\n")
    (library / "a").mkdir()
    (library / "a/z.py").write_text('"""A second module comes first."""')
    (library / "broken.py").write_text('"""Text of a broken file."""\n(')
    for folder in ("test", "site-packages", "a/tests"):
        (library / folder).mkdir()
        (library / folder / "x.py").write_text('"""This must not be read."""')
    assert list(documentation.documents()) == [
        ("pydoc_data/topics.py:del", []),
        ("pydoc_data/topics.py:with", ["Some topic text."]),
        ("a/z.py", ["A second module comes first."]),
        (
            "b.py",
            [
                "The module does one thing.",
                "It is described here.",
                "Returns the first of all things.",
                "Helps the first function along.",
                "Holds one thing for you.",
                "Waits for the thing \\d to come.",
            ],
        ),
        ("pydoc_data/topics.py", []),
    ]


def test_fingerprint_depends_on_names_and_content(library):
    first = documentation.fingerprint()
    (library / "a.py").write_text("x = 1")
    second = documentation.fingerprint()
    (library / "a.py").rename(library / "b.py")
    third = documentation.fingerprint()
    (library / "b.py").write_text("x = 2")
    fourth = documentation.fingerprint()
    (library / "b.py").write_text("x = 1")
    assert len({entry["sha256"] for entry in (first, second, third, fourth)}) == 4
    assert documentation.fingerprint() == third


def test_a_python_without_sources_is_reported(library):
    (library / "pydoc_data/topics.py").unlink()
    for use in (documentation.fingerprint, lambda: list(documentation.documents())):
        with pytest.raises(UserError, match=r"no pydoc_data/topics\.py.*data\.source to your own files"):
            use()
