"""Converts the vocabularies of folders of transformers to tokenizers of the library.

`read` opens the older files of encoders: SentencePiece models, and BPE in two files. `read_generator` opens folders of
encoder-decoders, also with a tokenizer.json.

The steps are those of transformers' converters (`convert_slow_tokenizer.py`), from which the published tokenizer.json
files come. The fields of a model: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

import base64
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from bertjax.data.text import vocabularies
from bertjax.data.text.vocabularies import OF_ROBERTA, ROLES, SPECIALS, Added
from bertjax.errors import UserError
from bertjax.interop.formats.protobuf import Message

# The files, and the class of transformers that opens them if no file of the folder states a known one.
FILES = {
    "sentencepiece.bpe.model": "XLMRobertaTokenizer",
    "spm.model": "DebertaV2Tokenizer",
    "spiece.model": "XLNetTokenizer",
    "merges.txt": "RobertaTokenizer",
}
_OF_ALBERT = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
_NORMAL_SCORE = 0.0
_UNUSED_SCORE = -100.0
_CONTROL, _USER_DEFINED = 3, 4  # types of pieces
_UNIGRAM, _BPE = 1, 2  # types of models
_SPACE = "\u2581"

Pieces = list[tuple[str, float]]


class _Class(NamedTuple):
    """A class of tokenizers of transformers.

    Attributes:
      special: the usual names of the special tokens, in the order of `ROLES`.
      settings: the keys of tokenizer_config.json that it reads, with their defaults.
    """

    special: Sequence[str]
    settings: Mapping[str, bool]


_CASING = {"do_lower_case": False, "keep_accents": False, "remove_space": True}
_CLASSES = {
    "XLMRobertaTokenizer": _Class(OF_ROBERTA, {}),
    "CamembertTokenizer": _Class(OF_ROBERTA, {}),
    "DebertaV2Tokenizer": _Class(SPECIALS, {"do_lower_case": False, "split_by_punct": False}),
    "AlbertTokenizer": _Class(_OF_ALBERT, {**_CASING, "do_lower_case": True}),
    "XLNetTokenizer": _Class(SPECIALS, _CASING),  # of KoBERT; XLNet has other special tokens
}
_BYTE_LEVEL = ("RobertaTokenizer", "LongformerTokenizer")


class _Generator(NamedTuple):
    """A class of tokenizers of encoder-decoders.

    Attributes:
      file: the file that older folders have instead of a tokenizer.json.
      mask: the usual name of the mask token; "" for none.
    """

    file: str
    mask: str


_GENERATORS = {
    "BartTokenizer": _Generator("merges.txt", "<mask>"),
    "RobertaTokenizer": _Generator("merges.txt", "<mask>"),  # the same class
    "MBart50Tokenizer": _Generator("sentencepiece.bpe.model", "<mask>"),
    "PegasusTokenizer": _Generator("spiece.model", "<mask_2>"),
    "T5Tokenizer": _Generator("spiece.model", ""),
}
_LANGUAGES = (  # of mBART-50, in the order of their ids
    *("ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN", "hi_IN", "it_IT"),
    *("ja_XX", "kk_KZ", "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP", "nl_XX", "ro_RO", "ru_RU", "si_LK"),
    *("tr_TR", "vi_VN", "zh_CN", "af_ZA", "az_AZ", "bn_IN", "fa_IR", "he_IL", "hr_HR", "id_ID", "ka_GE"),
    *("km_KH", "mk_MK", "ml_IN", "mn_MN", "mr_IN", "pl_PL", "ps_AF", "pt_XX", "sv_SE", "sw_KE", "ta_IN"),
    *("te_IN", "th_TH", "tl_XX", "uk_UA", "ur_PK", "xh_ZA", "gl_ES", "sl_SI"),
)


def is_convertible(path: Path) -> bool:
    """Returns whether `read` opens a file of this name."""
    return path.name in FILES or path.suffix == ".model"


def kind_of(path: Path) -> str:
    """Returns the class of transformers that opens a file. Without a known one in its folder, the name decides."""
    class_name = vocabularies.tokenizer_class(path.parent)
    # KoBERT is a BERT with a SentencePiece model.
    return FILES.get(path.name, "XLNetTokenizer") if class_name in ("", "BertTokenizer") else class_name


def read(path: Path) -> str:
    """Returns the tokenizer.json of a SentencePiece model, or of a merges.txt and the vocab.json in its folder.

    Raises:
      UserError: if a file is missing or damaged, or files of its folder state a class of tokenizers or a setting that
        is not supported.
    """
    folder = path.parent
    name = kind_of(path)
    class_names = _BYTE_LEVEL if path.name == "merges.txt" else tuple(_CLASSES)
    if name not in class_names:
        expected = f"for {path.name} one of {', '.join(class_names)}"
        fix = "open the folder with transformers' AutoTokenizer, and save_pretrained it, which writes tokenizer.json"
        raise UserError(f"the tokenizer of {folder}", got=f"tokenizer_class {name}", expected=expected, fix=fix)
    config = vocabularies.read_json(folder / "tokenizer_config.json")
    try:
        tokenizer = _byte_level(_bpe(folder), config) if name in _BYTE_LEVEL else _sentencepiece(path, name, config)
        _add_special(tokenizer, folder, name)
    except UserError:
        raise
    except Exception as error:  # the library raises no narrower type
        fix = "copy the files again"
        raise UserError(str(path), got=str(error), expected="a vocabulary", fix=fix) from None
    return tokenizer.to_str()


def read_generator(folder: Path, name: str) -> str:
    """Returns the tokenizer.json of an encoder-decoder's folder, as transformers 5 opens it.

    The class decides the steps. A tokenizer.json states only the tokens, their scores and the table of characters. Its
    other steps are applied if its model has another type: transformers 4 does so, and transformers 5 cannot open it.

    Args:
      folder: the folder.
      name: the class of the tokenizer: BartTokenizer, RobertaTokenizer, MBart50Tokenizer, PegasusTokenizer or
        T5Tokenizer; "" for a tokenizer.json whose steps are all applied.
    Raises:
      UserError: if there are no files of a tokenizer, or one is damaged or gives added tokens other ids.
    """
    path = folder / "tokenizer.json"
    if name and not path.exists():
        path = folder / _GENERATORS[name].file
    if not path.exists():
        got = " and ".join(f"no {file}" for file in dict.fromkeys(("tokenizer.json", path.name)))
        fix = "copy all files of the tokenizer"
        raise UserError(f"the tokenizer of {folder}", got=got, expected="one of them", fix=fix)
    config = vocabularies.read_json(folder / "tokenizer_config.json")
    special = [token for role, token in vocabularies.read_special_names(folder).items() if role != "mask"]
    of_files = vocabularies.read_added(folder, special, usual=())
    try:
        tokenizer, added = _generator(path, name, config)
    except UserError:
        raise
    except Exception as error:  # the library raises no narrower type
        fix = "copy the files again"
        raise UserError(str(path), got=str(error), expected="a vocabulary", fix=fix) from None
    contents = {token.content for token in of_files}
    added = [*of_files, *(token for token in added if token.content not in contents)]
    if name == "MBart50Tokenizer":  # a code includes the space after it, which is a token if no text follows
        added = [token._replace(rstrip=token.rstrip or token.content in _LANGUAGES) for token in added]
    tokenizer.add_tokens([token.of_library for token in added])
    vocabularies.check_added(added, tokenizer.get_vocab(with_added_tokens=True), str(folder))
    return tokenizer.to_str()


def _generator(path: Path, name: str, config: Mapping[str, Any]) -> tuple[Tokenizer, list[Added]]:
    """Returns the tokenizer of an encoder-decoder from one of its files, and the tokens that its class adds."""
    folder = path.parent
    is_library = path.suffix == ".json"
    is_byte_level = bool(name) and _GENERATORS[name].file == "merges.txt"
    if is_library and (not name or vocabularies.library_model(path) != ("BPE" if is_byte_level else "Unigram")):
        return Tokenizer.from_file(str(path)), []
    added = _class_tokens(folder, name, config)
    if is_byte_level:
        model = Tokenizer.from_file(str(path)).model if is_library else _bpe(folder)
        model.dropout = model.unk_token = None
        return _byte_level(model, config), added
    if is_library:
        pieces, charsmap = _of_library(folder)
    else:
        pieces, charsmap, tokens = _of_sentencepiece(path, name, config)
        added += map(_special, tokens)
    unk = vocabularies.read_special_names(folder).get("unk", "<unk>")
    unk_id = {"T5Tokenizer": 2, "MBart50Tokenizer": 3}.get(name) or [piece for piece, _ in pieces].index(unk)
    return _unigram(models.Unigram(pieces, unk_id=unk_id, byte_fallback=False), charsmap, name), added


def _unigram(model: models.Unigram, charsmap: bytes, name: str) -> Tokenizer:
    """Returns the tokenizer of an encoder-decoder's class."""
    tokenizer = Tokenizer(model)
    table: list[normalizers.Normalizer] = [normalizers.Precompiled(charsmap)] if charsmap else []
    spaces = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="always")
    if name == "T5Tokenizer":
        tokenizer.normalizer = normalizers.Sequence(table)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    else:
        lines = [normalizers.Replace("\n", " ")] if name == "PegasusTokenizer" and not table else []
        tokenizer.normalizer = normalizers.Sequence([*table, *lines, normalizers.Replace(Regex(" {2,}"), " ")])
        tokenizer.pre_tokenizer = spaces
    tokenizer.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme="always")
    return tokenizer


def _of_library(folder: Path) -> tuple[Pieces, bytes]:
    """Returns the pieces and the table of characters in a tokenizer.json of type Unigram."""
    values = vocabularies.read_library(folder)
    steps = values.get("normalizer") or {}
    tables = (step.get("precompiled_charsmap") for step in steps.get("normalizers", [steps]))
    charsmap = base64.b64decode(next(filter(None, tables), ""))
    return [(piece, score) for piece, score in values["model"]["vocab"]], charsmap


def _of_sentencepiece(path: Path, name: str, config: Mapping[str, Any]) -> tuple[Pieces, bytes, list[str]]:
    """Returns the pieces of a class, and of a SentencePiece model the table of characters and the added tokens."""
    model = Message(vocabularies.read_bytes(path, "correct the path"), str(path))
    kind = model.message(2).integer(3, _UNIGRAM)
    if kind != _UNIGRAM:
        fix = "use a folder with a tokenizer.json"
        raise UserError(str(path), got=f"a model of type {kind}", expected="one of type unigram", fix=fix)
    of_model = model.messages(1)
    pieces = [(piece.text(1), piece.number(2)) for piece in of_model]
    if name == "T5Tokenizer":
        pieces += [(token, _NORMAL_SCORE) for token in reversed(_others(name, config))]
    elif name == "MBart50Tokenizer":
        *start, mask = _of_fairseq(pieces, "XLMRobertaTokenizer")
        pieces = [*start, *((code, _NORMAL_SCORE) for code in _LANGUAGES), mask]
    else:
        pieces = [*_first_of_pegasus(path.parent, config), *pieces[2:]]
    added = [piece.text(1) for piece in of_model if piece.integer(3) in (_CONTROL, _USER_DEFINED)]
    # The class of PEGASUS adds only its own, and other tokens that a folder lists replace them.
    if name == "PegasusTokenizer" or config.keys() & {"additional_special_tokens", "extra_special_tokens"}:
        added = []
    return pieces, model.message(3).content(2), [token for token in added if token not in OF_ROBERTA]


def _first_of_pegasus(folder: Path, config: Mapping[str, Any]) -> Pieces:
    """Returns the pieces before those of PEGASUS's model.

    As in transformers 5, mask_token is first if both masks are stated, although <mask_1> is first in published files.
    """
    names = vocabularies.read_special_names(folder)
    masks = names.get("mask", "<mask_1>"), config.get("mask_token_sent", "<mask_2>")
    if masks[0] == masks[1]:
        expected = f"two tokens, because {masks[0]} alone shifts all other ids"
        fix = "add mask_token_sent, which is usually <mask_1>, to tokenizer_config.json"
        raise UserError(f"{folder}: mask_token and mask_token_sent", got=masks[0], expected=expected, fix=fix)
    first = [names.get("pad", "<pad>"), names.get("eos", "</s>"), *filter(None, masks)]
    unused = [name for name in _others("PegasusTokenizer", config) if name not in first]
    return [*((name, _NORMAL_SCORE) for name in first), *((name, _UNUSED_SCORE) for name in unused)]


def _class_tokens(folder: Path, name: str, config: Mapping[str, Any]) -> list[Added]:
    """Returns the tokens that the class of an encoder-decoder finds in a text."""
    mask = vocabularies.special_values(folder).get("mask", _GENERATORS[name].mask)
    options = mask if isinstance(mask, dict) else {"content": mask, "lstrip": name == "MBart50Tokenizer"}
    masks = [_special(options["content"], bool(options.get("lstrip")))] if mask else []
    return [*masks, *map(_special, _others(name, config))]


def _special(content: str, lstrip: bool = False) -> Added:
    return Added(content, lstrip=lstrip, normalized=False, special=True)


def _others(name: str, config: Mapping[str, Any]) -> Sequence[str]:
    """Returns T5's sentinels, PEGASUS's token of masked sentences and unused tokens, or mBART's languages."""
    if name == "T5Tokenizer":
        return [f"<extra_id_{i}>" for i in range(config.get("extra_ids", 100))]
    if name == "PegasusTokenizer":
        sentences = config.get("mask_token_sent", "<mask_1>")
        return [*filter(None, [sentences]), *(f"<unk_{i}>" for i in range(2, config.get("offset", 103)))]
    return _LANGUAGES if name == "MBart50Tokenizer" else ()


def _bpe(folder: Path) -> models.BPE:
    return models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))


def _byte_level(model: models.BPE, config: Mapping[str, Any]) -> Tokenizer:
    """Returns the byte-level BPE of GPT-2, RoBERTa and BART."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(config.get("add_prefix_space")))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(path: Path, name: str, config: Mapping[str, Any]) -> Tokenizer:
    """Returns the tokenizer of a SentencePiece model, as a class of transformers opens it."""
    settings = {key: config.get(key, default) for key, default in _CLASSES[name].settings.items()}
    model = Message(vocabularies.read_bytes(path, "correct the path"), str(path))
    trainer = model.message(2)
    charsmap = model.message(3).content(2)
    pieces = model.messages(1)
    tokenizer = Tokenizer(_model([(piece.text(1), piece.number(2)) for piece in pieces], name, trainer, str(path)))
    added = [(piece.text(1), kind) for piece in pieces if (kind := piece.integer(3)) in (_CONTROL, _USER_DEFINED)]
    tokenizer.add_tokens([AddedToken(piece, normalized=False, special=kind == _CONTROL) for piece, kind in added])
    tokenizer.normalizer = normalizers.Sequence(_normalizers(name, settings, charsmap))
    scheme = "never" if config.get("add_prefix_space") is False else "always" if config.get("legacy", True) else "first"
    spaces = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    punctuation = [pre_tokenizers.Punctuation(behavior="isolated")] if settings.get("split_by_punct") else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*punctuation, spaces])
    tokenizer.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    return tokenizer


def _model(pieces: Pieces, name: str, trainer: Message, where: str) -> models.Model:
    """Returns the model over the pieces of a file, in the order of the ids of a class.

    A character without a piece is unknown, as in the fast tokenizers of transformers, even if the file has tokens of
    bytes (`byte_fallback`, in DeBERTa-v3), into which the package sentencepiece would split it.
    """
    kind = trainer.integer(3, _UNIGRAM)
    unk_id = trainer.integer(40)
    if kind not in (_UNIGRAM, _BPE):
        got = f"a model of type {kind}"
        fix = "use a folder with a tokenizer.json"
        raise UserError(where, got=got, expected="a SentencePiece model of type unigram or bpe", fix=fix)
    merges = _merges(pieces) if kind == _BPE else []
    if name in ("XLMRobertaTokenizer", "CamembertTokenizer"):  # the ids of fairseq
        pieces = _of_fairseq(pieces, name)
        unk_id = 3
    elif name in ("AlbertTokenizer", "XLNetTokenizer"):  # a comma after a digit is a token of its own
        pieces = [
            (piece, score + _UNUSED_SCORE if piece.endswith(",") and piece[-2:-1].isdigit() else score)
            for piece, score in pieces
        ]
    if kind == _UNIGRAM:
        return models.Unigram(pieces, unk_id=unk_id, byte_fallback=False)
    vocab = {piece: number for number, (piece, _) in enumerate(pieces)}
    return models.BPE(vocab, merges, unk_token=trainer.text(45) or "<unk>", fuse_unk=True)


def _of_fairseq(pieces: Pieces, name: str) -> Pieces:
    """Returns the pieces with fairseq's special tokens. Those of CamemBERT hide tokens with the same names."""
    pad = ("<pad>", _NORMAL_SCORE)
    unk = ("<unk>", _NORMAL_SCORE)
    if name == "XLMRobertaTokenizer":
        first = [("<s>", _NORMAL_SCORE), pad, ("</s>", _NORMAL_SCORE), unk]
        rest = pieces[3:]
    else:
        names = ("<s>NOTUSED", "</s>NOTUSED")
        start, end = ((token, _NORMAL_SCORE) for token in names)
        first = [start, pad, end, unk, ("<unk>NOTUSED", _UNUSED_SCORE)]
        rest = pieces[1:]
    return [*first, *rest, ("<mask>", _NORMAL_SCORE)]


def _merges(pieces: Pieces) -> list[tuple[str, str]]:
    """Returns the merges of a BPE model: every split of a piece into two, by falling score of the piece."""
    vocab = {piece for piece, _ in pieces}
    merges = []
    for piece, score in dict(pieces).items():
        splits = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        merges += [(score, len(left), len(right), (left, right)) for left, right in splits if {left, right} <= vocab]
    return [merge for *_, merge in sorted(merges, key=lambda merge: merge[:3], reverse=True)]


def _normalizers(name: str, settings: Mapping[str, Any], charsmap: bytes) -> list[normalizers.Normalizer]:
    """Returns the steps of a class: some of its own, the model's table of characters, and joined spaces."""
    first: list[normalizers.Normalizer] = []
    last: list[normalizers.Normalizer] = [normalizers.Replace(Regex(" {2,}"), " ")]
    if name in ("AlbertTokenizer", "XLNetTokenizer"):
        if not settings["remove_space"]:
            raise UserError("tokenizer_config.json: remove_space", got=False, expected="True", fix="use another model")
        first = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        first += [] if settings["keep_accents"] else [normalizers.NFKD(), normalizers.StripAccents()]
        # The library's table does not compose Hangul, which SentencePiece does. Published ALBERTs have no Hangul.
        first += [normalizers.NFC()] if name == "XLNetTokenizer" else []
    if settings.get("do_lower_case"):
        first.append(normalizers.Lowercase())
    if name == "DebertaV2Tokenizer":
        first.append(normalizers.Strip())
    elif not settings:
        last = [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), _SPACE)]
    return [*first, *([normalizers.Precompiled(charsmap)] if charsmap else []), *last]


def _add_special(tokenizer: Tokenizer, folder: Path, name: str) -> None:
    """Marks the special tokens of rows, and adds those that are not in the vocabulary at its end.

    Raises:
      UserError: if added_tokens.json gives them other ids.
    """
    usual = _CLASSES[name].special if name in _CLASSES else OF_ROBERTA
    names = dict(zip(ROLES, usual, strict=True)) | vocabularies.read_special_names(folder)
    ids = vocabularies.read_json(folder / "added_tokens.json")
    # As in transformers, only the mask token of DeBERTa does not include the space before it.
    tokens = sorted((names[role] for role in ROLES), key=lambda token: ids.get(token, math.inf))
    in_vocabulary = {token for token in tokens if tokenizer.token_to_id(token) is not None}
    wanted = [token for token in tokens if token in in_vocabulary or token in ids or token == names["mask"]]
    strips = name != "DebertaV2Tokenizer"
    tokenizer.add_special_tokens(
        [AddedToken(token, lstrip=strips and token == names["mask"], normalized=False) for token in wanted]
    )
    added = [Added(token, ids.get(token)) for token in wanted]
    vocabularies.check_added(added, tokenizer.get_vocab(with_added_tokens=True), str(folder / "added_tokens.json"))
