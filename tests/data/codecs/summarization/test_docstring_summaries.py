from bertjax.data.codecs.summarization import docstring_summaries
from bertjax.data.codecs.summarization.docstring_summaries import Summarized
from bertjax.data.readers import documentation

SOURCE = '''
"""The module does one thing.

It is described here. It takes a lot of words. They fill some lines.

>>> left(out)
"""

def first():
    """Returns the first of all things.

    There are only two sentences. This is the last one.
    """

def second():
    """Returns the second of all things.
    This line comes too early. So it is no summary. There is more text."""

def third():
    """f(x) -> y

    This one has a signature. It says little. There is more text.
    """

def turtle():
    """Turns the turtle around.

    Here is an argument. Turns the turtle around. It turns right.
    """

class Thing:
    """Holds one thing for you.

    - Here is an item of it.
    - Here is another one.

    It is described here. They fill some lines.
    """

def again():
    """Holds a thing once more.

    It is described here. It takes a lot of words. They fill some lines.
    """
'''


def test_docstrings_with_a_summary_line_are_articles(tmp_path, monkeypatch):
    monkeypatch.setattr(documentation, "_library", lambda: tmp_path)
    (tmp_path / "a.py").write_text(SOURCE)
    (tmp_path / "b.py").write_text(SOURCE)
    described = ("It is described here.", "It takes a lot of words.", "They fill some lines.")
    items = ("- Here is an item of it.", "- Here is another one.", described[0], described[2])
    assert list(docstring_summaries.docstrings.__wrapped__()) == [
        Summarized("a.py#0", "a.py", described, "The module does one thing."),
        Summarized("a.py#5", "a.py", items, "Holds one thing for you."),
    ]
