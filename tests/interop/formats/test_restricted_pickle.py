import io
import pickle
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.errors import UserError
from bertjax.interop.formats import restricted_pickle
from bertjax.interop.formats.restricted_pickle import Function, Inert, InertClass

ALLOWED = {
    "ours.join": Function(lambda *arguments: ("joined", arguments)),
    "ours.kind": "a kind",
    "ours.Thing": InertClass("ours.Thing"),
}


def load(content):
    return restricted_pickle.load(io.BytesIO(content), "here", ALLOWED, lambda key: ("persistent", key))


PLAIN = {
    "numbers": [0, 255, 65535, -1, 2**31 - 1, -(2**31), 2**100, 1.5, True, False, None],
    "strings": ["", "größer", "x" * 300],
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    "nested": {0: {"a": [[], {}]}, -7: "b"},
    "lists": [[1], [1, 2]],
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_containers(protocol):
    assert load(pickle.dumps(PLAIN, protocol)) == PLAIN


def test_shared_and_cyclic_containers():
    shared = ["x"]
    cyclic = [shared, shared]
    cyclic.append(cyclic)
    found = load(pickle.dumps(cyclic, 2))
    assert found[0] is found[1]
    assert found[2] is found


def test_functions_values_and_persistent_ids():
    assert load(b"cours\njoin\nK\x01K\x02\x86R.") == ("joined", (1, 2))
    assert load(b"\x8c\x04ours\x8c\x04kind\x93.") == "a kind"
    assert load(b"K\x05Q.") == ("persistent", 5)


@pytest.mark.parametrize(
    ("content", "attributes"),
    [
        (b"cours\nThing\n)\x81.", {}),
        (b"cours\nThing\nK\x01\x85R.", {}),
        (b"cours\nThing\n)\x81}X\x01\x00\x00\x00aK\x01sb.", {"a": 1}),
        (b"cours\nThing\n)\x81K\x01K\x02\x86b.", {}),  # a state in two parts, as for a class with slots
        (b"cours\nThing\n)\x81(](K\x01eK\x02u.", {}),  # items with keys of any type
    ],
)
def test_inert_classes_make_placeholders(content, attributes):
    found = load(content)
    assert isinstance(found, Inert)
    assert (found.name, found.attributes) == ("ours.Thing", attributes)


def test_the_state_of_an_ordered_dict_is_dropped():
    assert load(b"}}X\x01\x00\x00\x00aK\x01sb.") == {}


def test_pickles_one_after_another():
    file = io.BytesIO(pickle.dumps(1, 2) + pickle.dumps([2], 4) + b"rest")
    assert [restricted_pickle.load(file, "here", {}, lambda key: key) for _ in range(2)] == [1, [2]]
    assert file.read() == b"rest"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"cos\nsystem\n.", r"os\.system; expected only the names ours\.join, ours\.kind, ours\.Thing\. Fix: if you"),
        (b"cours\njoin.__globals__\n.", r"ours\.join\.__globals__"),
        (b"cours\njoin\n}b.", "items or attributes for a value of type Function; expected type dict"),
        (b"cours\nkind\n)R.", "a call of str with tuple"),
        (b"K\x01K\x02\x93.", "a name that is no string"),
        (b"K\x01K\x02a.", "items or attributes for a value of type int; expected type list"),
        (b"]K\x01K\x02s.", "items or attributes for a value of type list; expected type dict"),
        (b"})K\x01s.", "a key of type tuple; expected keys of type str, or small integers"),
        (b"}\x8a\x05\0\0\0\0\x01K\x01s.", "a key of type int"),
        (b"(ios\nsystem\n.", "opcode INST 'os system'"),
        (b"(cours\njoin\no.", "opcode OBJ"),
        (b"cours\njoin\n)\x81.", "opcode NEWOBJ for Function with tuple"),
        (b"cours\nThing\n]\x81.", "opcode NEWOBJ for InertClass with list"),
        (b"cours\nThing\n}b.", "items or attributes for a value of type InertClass; expected type dict"),
        (b"cours\njoin\n)}\x92.", "opcode NEWOBJ_EX"),
        (b"\x82\xf0.", "opcode EXT1 240"),
        (b"Pid\n.", "opcode PERSID 'id'"),
        (b"\x97.", "opcode NEXT_BUFFER"),
        (b"\x8b\xd0\x07\0\0" + b"\x01" * 2000 + b".", "opcode LONG4 0x1010101"),  # Python limits decimal digits
        (b"C\x01a.", "opcode SHORT_BINBYTES b'a'"),
    ],
)
def test_forbidden_operations_are_refused(content, message):
    with pytest.raises(UserError, match=f"^here: got {message}"):
        load(content)


@pytest.mark.parametrize(
    "content", [b"", b"K\x01", b"\xff.", b"t.", b"](K\x01u.", b"h\x00.", b"Q.", b"\x8d" + b"\xff" * 8 + b"a."]
)
def test_damaged_pickles(content):
    with pytest.raises(UserError, match=r"^here: got "):
        load(content)


def test_memory_is_bounded_by_the_file_size():
    """A memo with a large number needs one entry, and nesting needs no stack."""
    assert load(b"K\x01r\xff\xff\xff\xff.") == 1
    depth = 10 * sys.getrecursionlimit()
    found = load(b")" + b"\x85" * depth + b".")
    for _ in range(depth):
        (found,) = found
    assert found == ()
    with pytest.raises(UserError, match="a key of type tuple"):
        load(b"})" + b"\x85" * depth + b"K\x01s.")


@settings(max_examples=300)
@given(st.data())
def test_any_bytes_are_a_value_or_a_user_error(data):
    if data.draw(st.booleans()):
        content = data.draw(st.binary(max_size=60))
    else:
        content = bytearray(pickle.dumps(PLAIN, data.draw(st.integers(0, 5))))
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        load(bytes(content))
    except UserError as error:
        assert str(error).startswith("here: ")
