"""Folders with all options set: the tables have all keys of the libraries that write them, and results are equal."""

import inspect
import json
import re

import numpy as np
import pytest

import bertjax
from bertjax.data.text.tokenizer_keys import TOKENIZER_CONFIG
from bertjax.decoding.generation import GENERATION
from bertjax.interop import folder_keys
from tests import published, tiny

pytest.importorskip("sentence_transformers")
transformers = pytest.importorskip("transformers")
from tests.robustness import fuzz_settings  # noqa: E402

_TOKENIZERS = (
    *("Bert", "Roberta", "XLMRoberta", "Camembert", "MPNet", "Albert", "DebertaV2"),
    *("Marian", "MBart50", "Pegasus", "T5"),
)


@pytest.fixture(scope="module", params=fuzz_settings.KINDS)
def written(request, tmp_path_factory):
    """A kind of folder, and a folder with all options set."""
    kind = fuzz_settings.KINDS[request.param]
    return kind, kind.write(tmp_path_factory.mktemp("written") / "folder")


def test_folders_have_only_keys_of_the_tables(written):
    _, folder = written
    assert folder_keys.unknown(folder) == ""


def test_folders_give_the_results_of_the_reference(written):
    kind, folder = written
    with tiny.few_devices(1):
        assert fuzz_settings.are_equal(kind.ours(folder), kind.theirs(folder))


@pytest.mark.parametrize("name", _TOKENIZERS)
def test_options_of_tokenizers(name):
    options = inspect.signature(getattr(transformers, f"{name}Tokenizer")).parameters.keys()
    inputs = {"vocab", "merges", "source_spm", "target_spm", "target_vocab_file", "kwargs", "_spm_precompiled_charsmap"}
    assert options - inputs <= TOKENIZER_CONFIG.names


def test_options_of_all_tokenizers():
    source = inspect.getsource(transformers.PreTrainedTokenizerBase.__init__)
    assert {*re.findall(r'kwargs.pop\("(\w+)"', source)} <= TOKENIZER_CONFIG.names


def test_rows_of_a_tokenizer_json():
    library = published.TOKENIZER._library_tokenizer()
    library.enable_truncation(8, direction="left")
    library.enable_padding()
    steps = json.loads(library.to_str())
    assert steps["truncation"].keys() == {"direction", "max_length", "strategy", "stride"}
    padding = {"strategy", "direction", "pad_to_multiple_of", "pad_id", "pad_type_id", "pad_token"}
    assert steps["padding"].keys() == padding


def test_options_of_modules():
    from sentence_transformers.sentence_transformer import modules

    for name, table in {**folder_keys.MODULES, "Transformer": folder_keys.TEXTS}.items():
        module = getattr(modules, name)
        assert {*module.config_keys, *module.config_key_renames} <= table.names, name


@pytest.mark.parametrize("name", ["BertLMHeadModel", "MarianMTModel"])
def test_options_of_generation(name):
    config = getattr(transformers, name).config_class()
    values = transformers.GenerationConfig.from_model_config(config).to_dict()
    assert values.keys() <= GENERATION.names


def test_exports_keep_what_a_folder_states(tmp_path):
    """The reference opens both kinds of exports with the prompt, the side, the size and the similarity."""
    from sentence_transformers import SentenceTransformer

    for name, experiment in (("bi-encoder", ""), ("cross-encoder", "reranker")):
        kind = fuzz_settings.KINDS[name]
        folder = kind.write(tmp_path / name)
        with tiny.few_devices(1):
            model = bertjax.load(folder, experiment)
            model.export(tmp_path / f"{name}-exported")
        exported = tmp_path / f"{name}-exported"
        assert fuzz_settings.are_equal(kind.theirs(exported), kind.theirs(folder))
        assert folder_keys.unknown(exported) == ""
    opened = SentenceTransformer(str(tmp_path / "bi-encoder-exported"), device="cpu")
    assert (opened.similarity_fn_name, opened.truncate_dim, opened.prompts["query"]) == ("dot", 5, "the ")
    assert np.shape(opened.encode(["cat"])) == (1, 5)
