"""The names of devices in --topology."""

import pytest

from bertjax.errors import UserError
from bertjax.tools.planning.targets import find_target, num_devices


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ("", r"got none; expected a device \(v4, v5e, v5p, v6e, a100, h100, h200, b200\) and a shape, .*DEVICE:SHAPE"),
        ("v5e", r"got 'v5e'; .*Fix: write DEVICE:SHAPE"),
        ("h100:8x", r"got 'h100:8x'; .*Fix: write DEVICE:SHAPE"),
        ("h100:٨", r"got 'h100:٨'; "),
        ("tesla:8", r"got 'tesla:8' \(unknown device\); .*Fix: write DEVICE:SHAPE"),
        ("H100:8", r"got 'H100:8' \(unknown device\); .*Did you mean 'h100:8'\?"),
        ("h10:4x8", r"got 'h10:4x8' \(unknown device\); .*Did you mean 'h100:4x8'\?"),
    ],
)
def test_unknown_names(topology, message):
    for function in (find_target, num_devices):
        with pytest.raises(UserError, match=f"^--topology: {message}"):
            function(topology)


def test_numbers_of_devices():
    numbers = {"v5e:4x4": 16, "v5p:4x4x4": 64, "h100:1": 1, "h100:8": 8, "a100:4x8": 32}
    assert {name: num_devices(name) for name in numbers} == numbers
