"""Random damage of files for fuzzing: bytes, lines, encodings, and types of JSON values."""

import gzip
import json
import random
from collections.abc import Callable
from typing import Any

_ODD = [
    *("\u2028", "\u0085", "\ufeff", "\u200f", "e\u0301", "\x1b[31m", "\x0b", "\x1c", "\U0001f600", "\u3000", "\u00a0"),
    *("\0", "\r", "\t", '"', "'", ",", "|||", "\\", "[MASK]", "#", "@highlight", "{", "]", "%s", "\ud800"),
]
VALUES: list[Any] = [
    *(None, True, 0, -1, 10**30, 1.5, float("nan"), float("inf"), "", " ", "x", "\0", "\ud800", "a\nb", "\u2028"),
    *([], {}, [[]], [None], {"a": {"b": [1]}}, ["x", 1], "0", "[MASK]"),
]
_LONG = 2**20 + 3


def mutate(content: bytes, rng: random.Random, is_json: bool) -> bytes:
    """Returns the content with one to three changes, rarely with none."""
    for _ in range(rng.choices((0, 1, 2, 3), (2, 60, 25, 13))[0]):
        if is_json and rng.random() < 0.5:
            content = _change_json(content, rng)
        else:
            content = rng.choices(*_CHANGES)[0](content, rng)
    return content


def damage_gzip(content: bytes, rng: random.Random) -> bytes:
    """Returns gzip data, usually truncated or with changed bytes."""
    packed = gzip.compress(content, mtime=0)
    return rng.choice((_truncated, _flipped, _inserted, lambda data, _: data))(packed, rng)


def _truncated(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _flipped(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 4, 16)) if content else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _inserted(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content) + 1)
    added = rng.choice((rng.randbytes(rng.randint(1, 8)), bytes([rng.randrange(256)]), b"\n", b"\n\n", b"\t"))
    return content[:place] + added + content[place:]


def _deleted(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + content[place + rng.randint(1, 40) :]


def _odd(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + rng.choice(_ODD).encode("utf-8", "surrogatepass") + content[place:]


def _of_lines(change: Callable[[list[bytes], int, random.Random], None]) -> Callable[[bytes, random.Random], bytes]:
    """Converts a change of a list of lines at a position to a change of the content."""

    def changed(content: bytes, rng: random.Random) -> bytes:
        found = content.split(b"\n")
        change(found, rng.randrange(len(found)), rng)
        return b"\n".join(found)

    return changed


def _repeat_line(found: list[bytes], at: int, rng: random.Random) -> None:
    found.insert(rng.randrange(len(found) + 1), found[at])


def _move_line(found: list[bytes], at: int, rng: random.Random) -> None:
    line = found.pop(at)
    found.insert(rng.randrange(len(found) + 1), line)


def _drop_line(found: list[bytes], at: int, rng: random.Random) -> None:
    del found[at]


def _blank_line(found: list[bytes], at: int, rng: random.Random) -> None:
    found.insert(at, rng.choice((b"", b" ", b"\t", b"\r", b"\xc2\xa0", b"\x0b", b"\0")))


def _reencode_line(found: list[bytes], at: int, rng: random.Random) -> None:
    text = found[at].decode("utf-8", "replace") + rng.choice(("", " \u00e9\u00df", " \u6771"))
    found[at] = text.encode(rng.choice(("utf-16", "utf-16-le", "latin-1", "cp1252", "utf-32")), "replace")


def _lengthen_line(found: list[bytes], at: int, rng: random.Random) -> None:
    added = rng.choice((b"x", b"x ", b" ", "\u00e9".encode(), b"\t", b"cat dog. "))
    place = rng.randrange(len(found[at]) + 1)
    found[at] = found[at][:place] + added * (_LONG // len(added)) + found[at][place:]


def _swap_columns(found: list[bytes], at: int, rng: random.Random) -> None:
    separator = rng.choice((b"\t", b","))
    found[at] = separator.join(reversed(found[at].split(separator)))


def _mixed_ends(content: bytes, rng: random.Random) -> bytes:
    parts = content.split(b"\n")
    ends = rng.choices((b"\n", b"\r\n", b"\r", b"\n\n"), (3, 6, 0.3, 0.3), k=len(parts) - 1)
    return b"".join(part + end for part, end in zip(parts, [*ends, b""], strict=True))


def _windows(content: bytes, rng: random.Random) -> bytes:
    return content.replace(b"\n", b"\r\n")


def _marked(content: bytes, rng: random.Random) -> bytes:
    mark = rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\xef\xbb\xbf\xef\xbb\xbf"))
    place = rng.choice((0, 0, 0, rng.randrange(len(content) + 1)))
    return content[:place] + mark + content[place:]


def _reencoded(content: bytes, rng: random.Random) -> bytes:
    return content.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-16-le", "utf-16-be", "utf-32")))


def _emptied(content: bytes, rng: random.Random) -> bytes:
    return rng.choice((b"", b"\n", b" \n\t\n", b"\xef\xbb\xbf", b"\0", b"\r\n", b"null", b"[]", b"{}", b'"'))


def _unended(content: bytes, rng: random.Random) -> bytes:
    return content.rstrip(b"\n")


_CHANGES = (
    [
        *(_truncated, _flipped, _inserted, _deleted, _odd, _mixed_ends, _windows, _marked, _reencoded, _emptied),
        _unended,
        *map(_of_lines, (_repeat_line, _move_line, _drop_line, _blank_line, _reencode_line, _swap_columns)),
        _of_lines(_lengthen_line),
    ],
    [*(4, 5, 5, 4, 6, 2, 2, 3, 1, 1), 2, *(3, 3, 2, 4, 4, 2), 0.4],
)


def _change_json(content: bytes, rng: random.Random) -> bytes:
    """Changes a value of a JSON file, or of a row of JSON lines. Other content is not changed."""
    rows, at = [content], 0
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        rows = content.split(b"\n")
        at = rng.randrange(len(rows))
        try:
            value = json.loads(rows[at])
        except (ValueError, RecursionError):
            return content
    if rng.random() < 0.04:
        rows[at] = rng.choice((b"[" * 5000 + b"]" * 5000, b"9" * 5000, b'{"a": 1, "a": 2}', b"1e999", b"[" * 10**5))
    else:
        changed = _changed_value(value, rng)
        rows[at] = json.dumps(changed, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    return b"\n".join(rows)


def _changed_value(value: Any, rng: random.Random) -> Any:
    """Returns the value with one change at a random depth."""
    if isinstance(value, (dict, list)) and value and rng.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = rng.choice(keys)
        kind = rng.random()
        if kind < 0.75:
            value[key] = _changed_value(value[key], rng)
        elif kind < 0.85:
            del value[key]
        elif isinstance(value, list):
            value.insert(rng.randrange(len(value) + 1), json.loads(json.dumps(value[key])))
        else:
            value[rng.choice((*keys, "text", "id", "\n", ""))] = value.pop(key)
        return value
    if isinstance(value, str) and rng.random() < 0.5:
        place = rng.randrange(len(value) + 1)
        return value[:place] + rng.choice(_ODD) + value[place:]
    return rng.choice(VALUES)
