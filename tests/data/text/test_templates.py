"""Tests of templates as files of tokenizers state them."""

import json

import pytest
from tokenizers import processors

from bertjax.data.text.templates import Template, read_template
from bertjax.errors import UserError

BERT, ROBERTA = Template.of_bert(8, 9), Template.of_roberta(8, 9)


def pieces(single, pair):
    return processors.TemplateProcessing(single, pair, [("[CLS]", 8), ("[SEP]", 9)])


def read(step):
    return read_template(
        step if step is None or isinstance(step, dict) else json.loads(step.__getstate__()), 10, "folder"
    )


@pytest.mark.parametrize(("step", "template"), [
    (None, None),
    (processors.ByteLevel(), None),
    (pieces("[CLS] $A [SEP]", None), None),
    (processors.BertProcessing(("[SEP]", 9), ("[CLS]", 8)), BERT),
    (processors.RobertaProcessing(("</s>", 9), ("<s>", 8)), ROBERTA),
    (processors.Sequence([processors.ByteLevel(), BERT.processor({8: "[CLS]", 9: "[SEP]"}.__getitem__)]), BERT),
    (pieces("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]"), ROBERTA),
    (pieces("[CLS] $A", "[CLS] $A [CLS]:1 $B:1"), Template((8,), (8,), (), 1)),
])  # fmt: skip
def test_a_post_processor(step, template):
    assert read(step) == template


@pytest.mark.parametrize("step", [
    pieces("[CLS] $A [SEP]", "[CLS] $A [SEP] $B"),
    pieces("$A [SEP]:2", "[CLS] $B [SEP] $A [SEP]"),
    pieces("[CLS] $A", "[CLS] $A:1 [SEP] $B:0"),
    processors.Sequence([BERT.processor(lambda _: "[CLS]")] * 2),
    processors.BertProcessing(("[SEP]", 10), ("[CLS]", 8)),
    {"type": "TemplateProcessing", "pair": [{"SpecialToken": {"id": "[CLS]"}}]},
    {"type": "BertProcessing"},
    {"type": ["RobertaProcessing"]},
])  # fmt: skip
def test_another_post_processor_is_an_error(step):
    with pytest.raises(UserError, match=r"folder: post_processor: got .*expected BertProcessing, Roberta"):
        read(step)
