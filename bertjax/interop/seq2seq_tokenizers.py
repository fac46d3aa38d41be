"""Reads the tokenizers of published encoder-decoders: folders of transformers with BART, mBART-50, PEGASUS or T5.

Ids equal those of transformers 5, except that the names of the padding, unknown, start and end tokens in a text are
ordinary text, which a Unigram model can still split into the piece of that name. Mask tokens, sentinels and codes of
languages in a text are tokens. A code includes all spaces after it. As in pipelines of transformers, generated texts
are without special tokens.
"""

import json
import logging
from pathlib import Path

from tokenizers import Tokenizer as Library

from bertjax.data.text import conversion, vocabularies
from bertjax.data.text.library_tokenizers import SILENT, LibraryTokenizer, open_library, state, without
from bertjax.data.text.templates import Template, read_template
from bertjax.data.text.tokenizer_keys import TOKENIZER_CONFIG
from bertjax.errors import UserError
from bertjax.file_keys import check_fixed
from bertjax.progress import log_once

# The classes of tokenizers by model_type; the first is that of folders that state none.
_CLASSES = {
    "bart": ("BartTokenizer", "RobertaTokenizer"),
    "mbart": ("MBart50Tokenizer",),
    "mt5": ("T5Tokenizer",),
    "pegasus": ("PegasusTokenizer",),
    "t5": ("T5Tokenizer",),
}
_NAMES = {"pad": "<pad>", "unk": "<unk>", "eos": "</s>"}  # the usual names of special tokens
_MASK = "<mask>"  # the usual mask token of BART
_START = "<s>"  # the usual start token of BART and mBART; other decoders start with padding


def read_tokenizer(folder: Path, kind: str, model_size: int | None = None) -> LibraryTokenizer:
    """Returns the tokenizer of an encoder-decoder.

    The template is `<s> A </s>` for BART and `A </s>` for the others. A tokenizer.json of a generic class decides by
    its post_processor; without one, as in KoBART, the template is `A </s>`, where transformers adds nothing.
    A text of mBART-50 starts with the code of its language and a space, such as "en_XX Hello".

    Args:
      folder: a folder of transformers, with a tokenizer.json, or with a SentencePiece model or vocab.json and
        merges.txt.
      kind: the model_type: "bart", "mbart", "mt5", "pegasus" or "t5".
      model_size: the number of embeddings of the model. BART for summaries, such as bart-large-cnn, has none for the
        mask token, which is then ordinary text.
    Raises:
      UserError: if the folder has no such files, a file is damaged, a special token is missing, or the class of the
        tokenizer is not one of the model or states unsupported settings.
    """
    path = folder / "tokenizer_config.json"
    config = vocabularies.read_json(path)
    TOKENIZER_CONFIG.check(config, path)
    check_fixed(config, {"truncation_side": "right"}, path)
    where = str(folder)
    class_name = _class_name(folder, kind)
    library = open_library(conversion.read_generator(folder, class_name), where)
    names_in_files = vocabularies.read_special_names(folder)
    mask = names_in_files.get("mask", _MASK)
    if kind == "bart" and library.token_to_id(mask) == model_size:
        library = _without_token(library, mask)
    names = _NAMES | {role: names_in_files[role] for role in _NAMES if role in names_in_files}
    if kind in ("bart", "mbart"):
        names["bos"] = names_in_files.get("bos", names_in_files.get("cls", _START))
    ids = {role: number for role, name in names.items() if (number := library.token_to_id(name)) is not None}
    missing = [f"{role}_token ({names[role]})" for role in names if role not in ids and role != "unk"]
    if missing:
        raise without(where, " and ".join(missing))
    has_start = kind == "bart" and bool(class_name)
    template = Template.of_roberta(ids["bos"], ids["eos"]) if has_start else Template.of_marian(ids["eos"])
    if kind != "mbart":  # the post_processor of mBART states one language
        size = library.get_vocab_size(with_added_tokens=True)
        stated = read_template(state(library.post_processor), size, where)
        if not (stated or class_name):
            fix = "add a post_processor to tokenizer.json to have others"
            log_once(
                f"{where} states no special tokens around texts: bertjax adds {names['eos']}; {fix}", logging.WARNING
            )
        template = stated or template
    library.post_processor = template.processor(library.id_to_token)
    special = (token.content for token in library.get_added_tokens_decoder().values() if token.special)
    silent = sorted(
        {names["unk"], *special, *config.get(SILENT, ())} - {names[role] for role in names if role != "unk"}
    )
    return LibraryTokenizer.from_json(library.to_str(), where, names, silent)


def _without_token(library: Library, name: str) -> Library:
    # The library cannot remove a token.
    values = json.loads(library.to_str())
    values["added_tokens"] = [token for token in values["added_tokens"] if token["content"] != name]
    values["model"]["vocab"].pop(name, None)
    return Library.from_str(json.dumps(values))


def _class_name(folder: Path, kind: str) -> str:
    """Returns the class of a folder's tokenizer; "" if tokenizer.json alone decides.

    Raises:
      UserError: if it is not a class of the model.
    """
    files = (folder / "tokenizer_config.json", folder / "config.json")
    class_names = [name for path in files if (name := vocabularies.read_json(path).get("tokenizer_class"))]
    # Without a class, transformers opens mBART-50 as the older mBART.
    usual = "MBartTokenizer" if kind == "mbart" else _CLASSES[kind][0]
    name = str([*class_names, usual][0]).removesuffix("Fast")
    if name in vocabularies.GENERIC_CLASSES:
        return ""
    if name not in _CLASSES[kind]:
        expected = f"for a model of type {kind} {' or '.join(_CLASSES[kind])}"
        fix = "correct tokenizer_class in tokenizer_config.json, or use another model"
        raise UserError(f"the tokenizer of {folder}", got=f"tokenizer_class {name}", expected=expected, fix=fix)
    return name
