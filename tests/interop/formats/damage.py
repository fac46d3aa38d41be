"""Files with wrong bytes."""

import contextlib

from hypothesis import strategies as st

from bertjax.errors import UserError


def damaged(data, content):
    """Truncates some bytes, or changes one to four of them."""
    content = bytearray(content)
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    for _ in range(data.draw(st.integers(1, 4))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    return bytes(content)


@contextlib.contextmanager
def errors_name(path):
    """Allows only errors that name a file or folder."""
    try:
        yield
    except UserError as error:
        assert str(path) in str(error)
