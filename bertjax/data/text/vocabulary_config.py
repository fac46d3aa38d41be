"""Opens and trains the tokenizers that a config names."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from bertjax import korean
from bertjax.config import Constrained, Count, always, at_least, choice, one_of
from bertjax.data.text import byte_bpe_trainer, conversion, library_encoders, wordpiece_trainer
from bertjax.data.text.library_encoders import LibraryEncoderTokenizer
from bertjax.data.text.normalization import Chain
from bertjax.data.text.tokenizers import EncoderTokenizer
from bertjax.data.text.vocabularies import Added, composes, library_model, states_casing
from bertjax.data.text.wordpiece import WordPiece
from bertjax.errors import UserError

WORDPIECE, BYTE_BPE = KINDS = ("wordpiece", "byte_bpe")  # the kinds that can be trained
_MIN_VOCAB_SIZES = {WORDPIECE: wordpiece_trainer.MIN_VOCAB_SIZE, BYTE_BPE: byte_bpe_trainer.MIN_VOCAB_SIZE}


@dataclasses.dataclass(frozen=True)
class VocabularyConfig(Constrained, prefix="data"):
    """The vocabulary of a BERT model.

    Attributes:
      vocab_file: a published vocabulary: a vocab.txt, a tokenizer.json, a SentencePiece model, or a folder with one; ""
        to train one in pretraining and summarization. Ignored if `init_from` has a vocabulary.
      lowercase: whether the vocabulary is uncased.
      strip_accents: whether WordPiece drops accents, which also decomposes Hangul unless `normalization` is "nfc".
        Default: as the vocabulary states, or `lowercase`.
    """

    vocab_file: str = always("")
    lowercase: bool = always(None)
    strip_accents: bool | None = dataclasses.field(default=None, kw_only=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AddedTokensConfig(Constrained, prefix="data"):
    """Tokens that training adds to a vocabulary.

    Attributes:
      add_tokens: tokens to add to the vocabulary of `init_from` or `vocab_file`. Each is found in a text before the
        text is split; its embedding starts as the mean of those of the tokens that it replaces.
    """

    add_tokens: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = [token for token in self.add_tokens if not token or token != token.strip()]
        twice = [token for token, count in Counter(self.add_tokens).items() if count > 1]
        expected = "different tokens, not empty, and without white space at their ends"
        self.check(not wrong + twice, "add_tokens", expected, got=f"{(wrong + twice)[:1]}", fix="correct the tokens")
        is_given = getattr(self, "vocab_file", "")
        fix = "set --config.init_from=FOLDER, or omit it"
        self.check(is_given or not self.add_tokens, "add_tokens", "a vocabulary to add tokens to", fix=fix)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedVocabularyConfig(VocabularyConfig, AddedTokensConfig):
    """The vocabulary, named or trained.

    Attributes:
      vocab_size: the maximum number of tokens of a trained vocabulary.
      tokenizer: the kind of vocabulary to train: "wordpiece" as BERT's, or "byte_bpe", byte-level BPE as RoBERTa's,
        which encodes every character of every language, and ignores `words` of summarization. Ignored with `vocab_file`
        or `init_from`.
      normalization: the Unicode form of a trained WordPiece vocabulary: "nfc", or "bert", in which Hangul of uncased
        text is letters (conjoining Jamo) instead of syllables.
      character_coverage: the fraction of the text whose characters become tokens of a trained WordPiece vocabulary, in
        up to half of it; the thousand most frequent characters always do.
      morphemes: "korean" to split Korean words into morphemes before word pieces of a trained WordPiece vocabulary,
        with kiwipiepy, which prediction needs too (the extra `korean`); "" for no split.
    """

    vocab_size: int = always(8192)
    tokenizer: Annotated[str, one_of(*KINDS)] = WORDPIECE
    normalization: Annotated[str, one_of("nfc", "bert")] = "bert"
    character_coverage: Annotated[float, at_least(0, at_most=1)] = 0.0
    morphemes: Annotated[str, one_of("", "korean")] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.vocab_file:
            check_vocab_size(self.tokenizer, self.vocab_size)
            is_free = self.strip_accents is None or self.tokenizer == WORDPIECE
            self.check(is_free, "strip_accents", "no value with data.tokenizer=byte_bpe", fix="omit it")
            is_composed = self.tokenizer == WORDPIECE and self.normalization == "nfc"
            expected = "'' unless data.tokenizer=wordpiece and data.normalization=nfc"
            self.check(is_composed or not self.morphemes, "morphemes", expected, fix="set these, or omit it")

    @property
    def chain(self) -> Chain:
        """The normalization of a trained WordPiece vocabulary."""
        morphemes = korean.analyzer_version() if self.morphemes else ""
        return Chain.of(self.lowercase, self.strip_accents, nfc=self.normalization == "nfc", morphemes=morphemes)

    @property
    def unlike_bert(self) -> list[Any]:
        """What differs from BERT's way to train a vocabulary, for digests."""
        if self.tokenizer != WORDPIECE:
            return [self.tokenizer]
        return [*self.chain.unlike_bert, *([self.character_coverage] if self.character_coverage else [])]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnedVocabularyConfig(TrainedVocabularyConfig):
    """The vocabulary, named or trained, or a named one with words of the text.

    Attributes:
      add_words: the maximum number of words of the training text to add to the vocabulary of `init_from` or
        `vocab_file`: those that save the most tokens, until the next saves less than one token in 10,000. Their
        embeddings start as those of `add_tokens`.
    """

    add_words: Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        fix = "set --config.init_from=FOLDER, or omit it"
        self.check(self.vocab_file or not self.add_words, "add_words", "a vocabulary to add words to", fix=fix)


def with_tokens(tokenizer: EncoderTokenizer, tokens: Sequence[str]) -> EncoderTokenizer:
    """Returns a tokenizer with the tokens of `AddedTokensConfig.add_tokens`, whose ids follow those of the others.

    Raises:
      UserError: if the vocabulary has a token already, or does not find it in text.
    """
    if not tokens:
        return tokenizer
    vocab = set(tokenizer.vocab)
    spaced = tokenizer.encode_batch([f" {token}" for token in tokens])
    for token, ids in zip(tokens, spaced, strict=True):
        if token in vocab or (len(ids) == 1 and ids[0] != tokenizer.unk_id):
            got = f"{token!r}, which the vocabulary has already"
            expected = "tokens that the vocabulary lacks"
            raise UserError("config key data.add_tokens", got=got, expected=expected, fix="omit this token")
    size = tokenizer.vocab_size
    extended = tokenizer.with_added([Added(token, size + number) for number, token in enumerate(tokens)])
    for number, (token, ids) in enumerate(zip(tokens, extended.encode_batch(tokens), strict=True), size):
        if ids != [number]:
            got = f"{token!r}, which the vocabulary encodes as {' '.join(map(repr, extended.names(ids)))}"
            expected = "tokens that remain different after normalization, such as lowercasing"
            raise UserError("config key data.add_tokens", got=got, expected=expected, fix="omit this token")
    return extended


def load_named(config: TrainedVocabularyConfig) -> EncoderTokenizer:
    """Returns the vocabulary in `vocab_file` with `add_tokens`. Raises UserError if `load_tokenizer` does."""
    return load_tokenizer(Path(config.vocab_file), config.lowercase, config.add_tokens, config.strip_accents)


def with_strip_accents(tokenizer: EncoderTokenizer, strip_accents: bool | None) -> EncoderTokenizer:
    """Returns a WordPiece tokenizer with another `strip_accents`; the tokenizer itself if that is None.

    Raises:
      UserError: if the vocabulary is another one and `strip_accents` is not None.
    """
    if strip_accents is None:
        return tokenizer
    if not isinstance(tokenizer, WordPiece):
        expected = "no value, because the vocabulary is not WordPiece and states its own normalization"
        raise UserError("config key data.strip_accents", got=strip_accents, expected=expected, fix="omit it")
    return tokenizer.with_strip_accents(strip_accents)


def load_tokenizer(
    path: Path, lowercase: bool, add_tokens: Sequence[str] = (), strip_accents: bool | None = None
) -> EncoderTokenizer:
    """Opens a vocabulary: a vocab.txt, a tokenizer.json, a file of `conversion.FILES`, or a folder of one of them.

    The first of these files in a folder is opened. Folders may also be those that `load_wordpiece` accepts.

    Args:
      path: the file or folder.
      lowercase: the casing.
      add_tokens: tokens to add; see `AddedTokensConfig`.
      strip_accents: see `with_strip_accents`.
    Raises:
      UserError: if there is no readable vocabulary, it has another casing or does not strip accents, or tokens cannot
        be added.
    """
    path = vocabulary_folder(path)
    library = _library(path)
    if library is None:
        return with_tokens(with_strip_accents(load_wordpiece(path, lowercase), strip_accents), add_tokens)
    tokenizer = LibraryEncoderTokenizer.from_file(library)
    _check_casing(tokenizer, lowercase, path)
    return with_tokens(with_strip_accents(tokenizer, strip_accents), add_tokens)


def load_wordpiece(path: Path, lowercase: bool) -> WordPiece:
    """Opens the vocabulary of a vocab.txt, a Hugging Face folder, or a folder or checkpoint of google-research/bert.

    Raises:
      UserError: if there is no readable vocabulary, or the folder states another casing.
    """
    path = vocabulary_folder(path)
    if not path.is_dir():
        return WordPiece.from_file(path, lowercase)
    if (path / "bert_config.json").exists():  # Google's folders do not state the casing
        return WordPiece.from_file(path / "vocab.txt", lowercase)
    tokenizer = WordPiece.load(path, default_lowercase=lowercase)
    _check_casing(tokenizer, lowercase, path)
    return tokenizer


def load_saved(folder: Path) -> EncoderTokenizer:
    """Opens the tokenizer that `Tokenizer.save` wrote to a folder. Raises UserError if it is missing or unreadable."""
    library = _library(folder)
    return WordPiece.load(folder) if library is None else LibraryEncoderTokenizer.from_file(library)


def vocabulary_folder(path: Path) -> Path:
    """Returns the folder of a checkpoint of google-research/bert, or the inner one of older sentence-transformers.

    WordPiece is read from several files of a folder, so for its tokenizer.json this is the folder too, and for a
    vocab.txt beside one that composes characters.
    """
    if path.name == "vocab.txt" and path.is_file() and composes(path.parent):
        return path.parent
    if path.suffix == ".json" and path.is_file() and library_model(path) == "WordPiece":
        return path.parent
    path = path.parent if Path(f"{path}.index").is_file() else path
    inside = path / "0_Transformer"
    return inside if inside.is_dir() else path


def saved_file(folder: Path) -> Path | None:
    """Returns the vocabulary file of a folder; None if there is none."""
    paths = (folder / name for name in ("vocab.txt", library_encoders.FILE, *conversion.FILES))
    return next((path for path in paths if path.exists()), None)


def casing(path: Path) -> bool | None:
    """Returns whether the vocabulary of a folder or tokenizer.json is lowercased; None if no file states it.

    Raises:
      UserError: if a file is unreadable.
    """
    path = vocabulary_folder(path)
    library = _library(path)
    if library is not None:
        return LibraryEncoderTokenizer.from_file(library).lowercase
    return WordPiece.load(path).lowercase if path.is_dir() and states_casing(path) else None


def check_vocab_size(kind: str, vocab_size: int) -> None:
    """Raises UserError if a vocabulary of a kind cannot be trained with so few tokens."""
    smallest = _MIN_VOCAB_SIZES[choice(kind, KINDS, "data.tokenizer")]
    if vocab_size < smallest:
        raise UserError(
            "config key data.vocab_size",
            got=vocab_size,
            expected=f"at least {smallest}, for the special tokens and "
            + ("all bytes" if kind == BYTE_BPE else "some characters"),
            fix="raise it; BERT has 30522",
        )


def count_words(kind: str, texts: Iterable[str], chain: Chain) -> Counter[str]:
    """Returns the occurrences of each word, as a tokenizer of a kind splits words."""
    if kind == BYTE_BPE:
        return byte_bpe_trainer.count_words(texts, chain.lowercase)
    return wordpiece_trainer.count_words(texts, chain)


def _library(path: Path) -> Path | None:
    """Returns the file of a `LibraryEncoderTokenizer`; None for WordPiece and other files."""
    if not path.is_dir():
        return path if path.suffix == ".json" or conversion.is_convertible(path) else None
    file = saved_file(path)
    if file is None or conversion.is_convertible(file):
        return file
    is_wordpiece = file.name == "vocab.txt" or library_model(file) in ("", "WordPiece")
    return None if is_wordpiece else file


def _check_casing(tokenizer: EncoderTokenizer, lowercase: bool, path: Path) -> None:
    if tokenizer.lowercase != lowercase:
        expected = f"{tokenizer.lowercase}, the casing of the tokenizer in {path}"
        fix = f"set --config.data.lowercase={tokenizer.lowercase}"
        raise UserError("config key data.lowercase", got=lowercase, expected=expected, fix=fix)
