"""Tests of the records of families."""

from pathlib import Path

import pytest

from bertjax.errors import UserError
from bertjax.interop import families
from bertjax.interop.published import Run


@pytest.mark.parametrize("name", families.ENCODERS)
def test_a_record_has_the_name_of_its_module(name):
    assert families.find(name).name == name


def test_an_unknown_family():
    with pytest.raises(UserError, match=r"model\.family: got 'modernbart'; expected one of bert, "):
        families.find("modernbart")


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ({"family": "modernbert"}, "modernbert"),
        ({}, "bert"),  # like the others, of earlier versions
        ({"positions": "rotary"}, "modernbert"),
        ({"positions": "none"}, "bert"),
    ],
)
def test_the_family_of_a_run(model, family):
    assert Run(Path("run"), {"model": model}).family == family
