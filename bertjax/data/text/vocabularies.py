"""Reads and checks vocabulary files: vocab.txt and the folders of Hugging Face tokenizers."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken

from bertjax.data.text.normalization import CONTINUATION, Chain
from bertjax.data.text.templates import Template, read_template
from bertjax.data.text.tokenizer_keys import SPECIAL, TOKENIZER_CONFIG
from bertjax.errors import UserError
from bertjax.files import parse_json

PAD, UNK, CLS, SEP, MASK = SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
OF_ROBERTA = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
ROLES = ("pad", "unk", "cls", "sep", "mask")  # in the order of `SPECIALS`
GOOGLE_WORD_CHARS, TRANSFORMERS_WORD_CHARS = 200, 100  # a longer word is [UNK] in google-research/bert, transformers
_LONGEST = "max_input_chars_per_word"
_LIBRARY_KINDS = {"normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}  # parts of a tokenizer.json
_MAX_INT = 2**31 - 1
_LIBRARY_PARTS = {"truncation": dict, "normalizer": dict, "pre_tokenizer": dict, "model": dict, "added_tokens": list}
_JAPANESE = ("word_tokenizer_type", "subword_tokenizer_type", "mecab_kwargs")  # keys of BertJapaneseTokenizer's config
_OF_MPNET = ("<pad>", "[UNK]", "<s>", "</s>", "<mask>")  # its special tokens
GENERIC_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend")
# The classes that surround texts with their special tokens, whatever the post_processor states.
_OWN_TEMPLATES = ("BertTokenizer", "MPNetTokenizer", "RobertaTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer")
_LIKE_ROBERTA = {*_OWN_TEMPLATES, "LongformerTokenizer"} - {"BertTokenizer"}
# The classes of tokenizers by model_type, where it is not that of BERT.
_CLASSES = {
    "albert": "AlbertTokenizer",
    "camembert": "CamembertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "longformer": "LongformerTokenizer",
    "mpnet": "MPNetTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}
# A model of another tokenizer was trained on ids that differ from ours.
_FOREIGN_FIX = "use another model, because this tokenizer encodes text differently from BERT's"


class Added(NamedTuple):
    """A token that is found in a text before the text is split: `AddedToken` of the library, which defines the options.

    Attributes:
      content: the token.
      id: its id; None if no file states it.
      single_word: whether it is found only as a whole word.
      lstrip: whether it includes the spaces before it.
      rstrip: whether it includes the spaces after it.
      normalized: whether it is found in normalized text, such as lower case.
      special: whether it is a special token.
    """

    content: str
    id: int | None = None
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False

    @property
    def of_library(self) -> AddedToken:
        """The token as the library adds it, without the id."""
        return AddedToken(**{key: value for key, value in self._asdict().items() if key != "id"})


_FLAGS = Added._fields[2:]


def read_added(
    folder: Path, special: Sequence[str], usual: Sequence[str] = (*SPECIALS, *OF_ROBERTA)
) -> tuple[Added, ...]:
    """Returns the added tokens of a folder of transformers in the order in which they are added.

    If files disagree about the options of a token, `added_tokens_decoder` of tokenizer_config.json decides, as in
    transformers 5. The names of special tokens of rows are not among them, because they are ordinary text.

    Args:
      folder: the folder.
      special: the names of the special tokens of rows.
      usual: names that are ordinary text in all folders.
    Raises:
      UserError: if a file is unreadable, or a token malformed.
    """
    config = read_json(folder / "tokenizer_config.json")
    options = {_content(token, folder): token for token in read_library(folder).get("added_tokens") or ()}
    decoder = config.get("added_tokens_decoder")
    names = []
    for values in (config, read_json(folder / "special_tokens_map.json")):
        for more in (values.get("extra_special_tokens"), values.get("additional_special_tokens")):
            listed = more.values() if isinstance(more, dict) else more or ()
            if not isinstance(more, dict | list | None):
                raise _malformed(folder, more)
            names += [_content(token, folder) for token in listed]
    if decoder is None:
        of_file = read_json(folder / "added_tokens.json").items()
        options = {token: {"id": number, **_options(token in names)} for token, number in of_file} | options
    elif not isinstance(decoder, dict) or not all(number.isdecimal() for number in decoder):
        raise _malformed(folder, decoder)
    else:
        options |= {_content(token, folder): {**token, "id": int(number)} for number, token in decoder.items()}
    options = {name: _options(is_special=True) for name in names} | options
    ordinary = {*special, *usual}
    keys = Added._fields[1:]
    added = [
        Added(name, **{key: token[key] for key in keys if key in token})
        for name, token in options.items()
        if name not in ordinary
    ]
    return tuple(sorted(added, key=lambda token: (token.id is None, token.id)))


def _content(token: Any, folder: Path) -> str:
    """Returns the text of a token, which is a string, or an object with options. Raises UserError for another value."""
    name = token.get("content") if isinstance(token, dict) else token
    options = token if isinstance(token, dict) else {}
    are_flags = all(isinstance(value, bool) for key, value in options.items() if key in _FLAGS)
    is_text = isinstance(name, str) and name and not any("\ud800" <= char <= "\udfff" for char in name)
    if not is_text or not are_flags:
        raise _malformed(folder, token)
    return str(name)


def _malformed(folder: Path, got: Any) -> UserError:
    expected = "tokens, each a text, or an object with the text as 'content' and options that are true or false"
    return UserError(f"added or special tokens of {folder}", got=f"{got!r}", expected=expected, fix="restore the files")


def _options(is_special: bool) -> dict[str, bool]:
    """Returns the options of a token of which only this is stated."""
    return {"special": is_special, "normalized": not is_special}


def check_added(added: Sequence[Added], ids: Mapping[str, int], where: str) -> None:
    """Raises UserError if the ids of added tokens are not those that their files state."""
    for token in added:
        if token.id not in (None, ids[token.content]):
            expected = f"{ids[token.content]}, the next id of the vocabulary"
            fix = "restore the files"
            raise UserError(f"{where}: added token {token.content!r}", got=token.id, expected=expected, fix=fix)


def checked_ids(vocab: Sequence[str], what: str, special: Sequence[str] = SPECIALS) -> dict[str, int]:
    """Returns the id of each token; `what` names the vocabulary in messages, `special` the special tokens.

    Raises:
      UserError: if a special token is missing, or a token occurs twice.
    """
    lines = defaultdict(list)
    for number, token in enumerate(vocab, start=1):
        lines[token].append(number)
    missing = [token for token in special if token not in lines]
    if missing:
        expected = "one token per line, including " + " ".join(special)
        fix = "use a BERT vocabulary (vocab.txt)"
        raise UserError(what, got=f"{len(vocab)} tokens without {' '.join(missing)}", expected=expected, fix=fix)
    twice = {token: numbers for token, numbers in lines.items() if len(numbers) > 1}
    if twice:
        token, numbers = next(iter(twice.items()))
        got = f"{token!r} on lines {', '.join(map(str, numbers))} ({len(twice)} duplicated tokens in all)"
        fix = "restore the original file; deleting a line would shift the ids after it"
        raise UserError(what, got=got, expected="each token once", fix=fix)
    return {token: numbers[0] - 1 for token, numbers in lines.items()}


def has_only_specials(vocab: Sequence[str]) -> bool:
    """Returns whether a vocabulary has only special tokens. Such a stand-in is used to check settings."""
    return all(token.startswith("[") and token.endswith("]") for token in vocab)


def read_vocab(path: Path, special: Sequence[str] = SPECIALS) -> list[str]:
    """Returns the tokens of a vocab.txt: UTF-8, one token per line. `special` names the special tokens.

    Raises:
      UserError: if the path is not a readable file, the content is empty or not UTF-8, a special token is missing, a
        token occurs twice, or there are only special tokens.
    """
    data = read_bytes(path, fix="name a vocab.txt")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {data.count(10, 0, error.start) + 1}",
            got=f"the byte 0x{data[error.start]:02x} ({error.reason})",
            expected="UTF-8",
            fix="save the file as UTF-8",
        ) from error
    # splitlines is not used, because U+0085 or U+2028 may be a token.
    vocab = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
    checked_ids(vocab, str(path), special)
    _check_words(vocab, str(path))
    return vocab


def read_folder(
    folder: Path, default_lowercase: bool | None = None
) -> tuple[list[str], bool, int, Sequence[str], Sequence[Added], bool, bool, str, Template]:
    """Returns the arguments of `WordPiece` that the files of a Hugging Face folder state.

    Reads the tokens from vocab.txt or else tokenizer.json. For added tokens see `read_added`. The normalization and the
    maximum word length are in tokenizer.json or tokenizer_config.json. The default length is that of transformers.

    Args:
      folder: the folder.
      default_lowercase: whether text is lowercased, if no file states it.
    Raises:
      UserError: if there is no vocabulary or no casing, a file is unreadable, or the tokenizer is not BERT's (another
        model, normalizer or splitter, Chinese not split), or added tokens do not have the next ids.
    """
    library = read_library(folder)
    config = read_json(folder / "tokenizer_config.json")
    chain = _chain(folder, library, config, default_lowercase)
    _check_kind(folder, library, config, chain.lowercase)
    for role, value in special_values(folder).items():
        if role in ROLES and value is None:
            expected = "a token, because rows of WordPiece need it"
            raise UserError(f"{folder}: {role}_token", got="null", expected=expected, fix="restore the files")
    kind = tokenizer_class(folder)
    usual = _OF_MPNET if kind == "MPNetTokenizer" else SPECIALS
    names = dict(zip(ROLES, usual, strict=True)) | read_special_names(folder)
    special = tuple(names[role] for role in ROLES)
    path = folder / "vocab.txt"
    vocab = read_vocab(path, special) if path.exists() else _library_vocab(folder, library)
    ids = checked_ids(vocab, str(folder), special)
    added = read_added(folder, special)
    for token in added:
        ids.setdefault(token.content, len(ids))
    check_added(added, ids, str(folder))
    added = tuple(token._replace(id=ids[token.content]) for token in added)
    template = folder_template(folder, kind, library, ids[special[2]], ids[special[3]], len(ids))
    return vocab, chain.lowercase, _longest_word(folder, library, config), special, added, *chain[1:], template


def _longest_word(folder: Path, library: dict[str, Any], config: dict[str, Any]) -> int:
    """Returns the length above which a word is [UNK]."""
    lengths = (library.get("model") or {}).get(_LONGEST), config.get(_LONGEST)
    longest = next((value for value in lengths if value is not None), TRANSFORMERS_WORD_CHARS)
    if type(longest) is not int or not 1 <= longest <= _MAX_INT:
        expected = f"a number from 1 to {_MAX_INT}"
        raise UserError(str(folder), got=f"{_LONGEST} {longest}", expected=expected, fix="restore the files")
    return longest


def read_bytes(path: Path, fix: str, expected: str = "a readable file") -> bytes:
    """Returns the content of a file. Raises UserError with `expected` and `fix` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(str(path), got=error.strerror, expected=expected, fix=fix) from None


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file, or {} if the file does not exist."""
    if not path.exists():
        return {}
    fix = "restore the file"
    try:
        value = parse_json(read_bytes(path, fix))
    except (ValueError, RecursionError) as error:
        raise UserError(str(path), got=str(error), expected="JSON in UTF-8", fix=fix) from error
    if not isinstance(value, dict):
        raise UserError(str(path), got=f"a JSON {type(value).__name__}", expected="a JSON object", fix=fix)
    return value


def read_library(folder: Path) -> dict[str, Any]:
    """Returns the object in a tokenizer.json after checking the types of its parts, or {} if there is no such file."""
    path = folder / "tokenizer.json"
    library = read_json(path)
    for part, kind in _LIBRARY_PARTS.items():
        if not isinstance(library.get(part) or kind(), kind):
            got = f"a JSON {type(library[part]).__name__}"
            expected = f"a JSON {kind.__name__}"
            raise UserError(f"{path}: {part}", got=got, expected=expected, fix="restore the file")
    for token in library.get("added_tokens") or ():
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            got = f"{token}"
            expected = "an object with the token as 'content'"
            raise UserError(f"{path}: added_tokens", got=got, expected=expected, fix="restore the file")
    return library


def states_casing(folder: Path) -> bool:
    """Returns whether a file of a Hugging Face folder states the casing. Raises UserError for unreadable files."""
    library = read_library(folder)
    config = read_json(folder / "tokenizer_config.json")
    return (config.get("do_lower_case"), _normalizer(library)[0].get("lowercase")) != (None, None)


def composes(folder: Path) -> bool:
    """Returns whether a folder's tokenizer.json composes characters, as vocabularies trained here do."""
    return _normalizer(read_library(folder))[1]


def _normalizer(library: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Returns the normalizer in a tokenizer.json without a final NFC, and whether there is one after BERT's."""
    normalizer: dict[str, Any] = library.get("normalizer") or {}
    steps: Any = normalizer.get("normalizers")
    kinds = [step.get("type") for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    return (steps[0], True) if kinds == [_LIBRARY_KINDS["normalizer"], "NFC"] else (normalizer, False)


def _chain(folder: Path, library: dict[str, Any], config: dict[str, Any], default: bool | None) -> Chain:
    """Returns the normalization of a Hugging Face folder's tokenizer."""
    normalizer, nfc = _normalizer(library)
    settings = {
        "lowercase": (config.get("do_lower_case"), normalizer.get("lowercase")),
        "strip_accents": (config.get("strip_accents"), normalizer.get("strip_accents")),
        "chinese": (config.get("tokenize_chinese_chars"), normalizer.get("handle_chinese_chars")),
    }
    first = {key: next((v for v in values if v is not None), None) for key, values in settings.items()}
    lowercase = default if first["lowercase"] is None else first["lowercase"]
    if not isinstance(lowercase, bool):
        raise UserError(
            str(folder),
            got=f"do_lower_case {lowercase}" if lowercase is not None else "no file that states the casing",
            expected="do_lower_case in tokenizer_config.json, or a BertNormalizer in tokenizer.json",
            fix='write {"do_lower_case": true} (false for a cased model) to tokenizer_config.json, '
            "or set --config.data.lowercase",
        )
    strip_accents = lowercase if first["strip_accents"] is None else first["strip_accents"]
    if not isinstance(strip_accents, bool) or first["chinese"] is False:
        expected = "strip_accents true, false or null, and Chinese characters split, as in BERT"
        raise UserError(str(folder), got=f"{first}", expected=expected, fix=_FOREIGN_FIX)
    return Chain(lowercase, strip_accents, nfc, str(config.get("morphemes", "")))


def _check_kind(folder: Path, library: dict[str, Any], config: dict[str, Any], lowercase: bool) -> None:
    """Raises UserError for a tokenizer that splits text differently from BERT's."""
    library = {**library, "normalizer": _normalizer(library)[0]}
    kinds = {part: (library.get(part) or {}).get("type") for part in _LIBRARY_KINDS}
    sentences = read_json(folder / "sentence_bert_config.json")
    foreign = [
        *(f"tokenizer_class {name}" for name in [str(config.get("tokenizer_class", ""))] if "Japanese" in name),
        *(f"{key} {config[key]}" for key in _JAPANESE if config.get(key) is not None),
        *(["do_basic_tokenize false"] if config.get("do_basic_tokenize") is False else ()),
        *(f"{part} {kind}" for part, kind in kinds.items() if kind not in (None, _LIBRARY_KINDS[part])),
        *(["do_lower_case true for sentences"] if sentences.get("do_lower_case") and not lowercase else ()),
    ]
    if foreign:
        expected = "BERT's own tokenizer: text split at spaces, punctuation and Chinese characters, then WordPiece"
        raise UserError(f"the tokenizer of {folder}", got=", ".join(foreign), expected=expected, fix=_FOREIGN_FIX)


def _library_vocab(folder: Path, library: dict[str, Any]) -> list[str]:
    """Returns the tokens of a tokenizer.json, in the order of their ids."""
    model = library.get("model") or {}
    if model.get("type") != "WordPiece":
        got = f"a tokenizer.json of type {model.get('type')}" if library else "no vocab.txt and no tokenizer.json"
        fix = "name the folder of a BERT model"
        raise UserError(str(folder), got=got, expected="a WordPiece vocabulary: vocab.txt or tokenizer.json", fix=fix)
    ids = model.get("vocab")
    if not isinstance(ids, dict) or {*map(repr, ids.values())} != {*map(repr, range(len(ids)))}:
        got = "ids with gaps or repeats" if ids and isinstance(ids, dict) else "no ids"
        expected = "tokens with the ids 0, 1, ..."
        raise UserError(str(folder / "tokenizer.json"), got=got, expected=expected, fix="restore the file")
    vocab = sorted(ids, key=ids.__getitem__)
    _check_words(vocab, str(folder / "tokenizer.json"))
    return vocab


def _check_words(vocab: Sequence[str], what: str) -> None:
    """Raises UserError for a vocabulary of special tokens only, or of SentencePiece, whose words WordPiece never finds.

    transformers saves the first kind if it finds no vocabulary. KoBERT has the second kind.
    """
    if not any(token.startswith(CONTINUATION) for token in vocab) and any(
        token.startswith("\u2581") for token in vocab
    ):
        got = "tokens of SentencePiece, which start with \u2581, and none that start with ##"
        fix = "remove the file, and name the SentencePiece model of the same folder spiece.model"
        raise UserError(what, got=got, expected="a BERT vocabulary with words and pieces", fix=fix)
    if has_only_specials(vocab):
        expected = "a BERT vocabulary with words and pieces"
        fix = "restore the vocabulary that the model was trained with"
        raise UserError(what, got=f"only {len(vocab)} special tokens", expected=expected, fix=fix)


def tokenizer_class(folder: Path) -> str:
    """Returns the class of transformers that the files of a folder state, without "Fast"; "" for none."""
    config = read_json(folder / "config.json")
    class_names = read_json(folder / "tokenizer_config.json").get("tokenizer_class"), config.get("tokenizer_class")
    names = [str(name).removesuffix("Fast") for name in class_names if name]
    usual = _CLASSES.get(str(config.get("model_type")), "")
    return next((name for name in names if name not in GENERIC_CLASSES), usual)


def folder_template(
    folder: Path, kind: str, library: Mapping[str, Any], cls_id: int, sep_id: int, size: int
) -> Template:
    """Returns how texts become rows, by the files of a folder of transformers.

    Args:
      folder: the folder.
      kind: the class of its tokenizer, which decides if there is no post_processor.
      library: the post_processor and the truncation of its tokenizer.json; empty if there is none.
      cls_id: the id of the start token.
      sep_id: the id of the separator.
      size: the size of the vocabulary.
    Raises:
      UserError: for a post_processor, or a key of tokenizer_config.json, that is not supported.
    """
    path = folder / "tokenizer_config.json"
    config = read_json(path)
    TOKENIZER_CONFIG.check(config, path)
    usual = Template.of_roberta if kind in _LIKE_ROBERTA else Template.of_bert
    where = str(folder / "tokenizer.json")
    template = read_template(library.get("post_processor"), size, where) or usual(cls_id, sep_id)
    if kind in _OWN_TEMPLATES and not (cls_id in template.start and sep_id in template.end):
        expected = f"the ids {cls_id} and {sep_id} of the special tokens, with which {kind} surrounds texts"
        raise UserError(f"{where}: post_processor", got=f"{template}", expected=expected, fix="restore the files")
    direction = str((library.get("truncation") or {}).get("direction", "right")).lower()
    side = config.get("truncation_side", direction)
    if side not in ("left", "right"):
        raise UserError(
            f"{path}: truncation_side", got=f"{side!r}", expected="'left' or 'right'", fix="correct the key"
        )
    return dataclasses.replace(template, truncates_left=side == "left")


def read_special_names(folder: Path) -> dict[str, str]:
    """Returns the names of special tokens that the files of a folder state, by role ("cls", "mask", ...)."""
    return {role: _content(value, folder) for role, value in special_values(folder).items() if value is not None}


def special_values(folder: Path) -> dict[str, Any]:
    """Returns the values of special tokens by role.

    As in transformers 5, those of special_tokens_map.json count unless there is an `added_tokens_decoder`.
    """
    values = read_json(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in values:
        values |= read_json(folder / "special_tokens_map.json")
    return {key.removesuffix("_token"): values[key] for key in SPECIAL if key in values}


def library_model(path: Path) -> str:
    """Returns the type of the model in a tokenizer.json; "" if there is no such file. Raises UserError for bad JSON."""
    model = read_json(path).get("model")
    if not isinstance(model, dict):
        return ""
    return str(model.get("type") or ("BPE" if "merges" in model else "WordPiece"))
