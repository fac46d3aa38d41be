"""The keys of the files of tokenizers of transformers."""

from bertjax.file_keys import FileKeys

SPECIAL = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_LISTS = ("extra_special_tokens", "additional_special_tokens", "model_specific_special_tokens")
_LOADING = (
    *(
        "backend",
        "is_local",
        "local_files_only",
        "name_or_path",
        "tokenizer_file",
        "vocab_file",
        "special_tokens_map_file",
    ),
    *("init_inputs", "auto_map", "processor_class", "use_fast", "from_slow", "verbose", "token", "trust_remote_code"),
    *(
        "cache_dir",
        "revision",
        "subfolder",
        "device_map",
        "slow_tokenizer_class",
        "files_loaded",
        "full_tokenizer_file",
    ),
    *("tokenizer_type", "language", "never_split", "use_auth_token"),
)
_ROWS = ("max_length", "stride", "truncation_strategy", "pad_to_multiple_of", "pad_token_type_id", "padding_side")

TOKENIZER_CONFIG = FileKeys(
    applied=(
        *SPECIAL,
        *_LISTS[:2],
        *("added_tokens_decoder", "tokenizer_class", "model_max_length", "max_len", "truncation_side"),
        *("do_lower_case", "strip_accents", "tokenize_chinese_chars", "max_input_chars_per_word"),
        *("do_basic_tokenize", "word_tokenizer_type", "subword_tokenizer_type", "mecab_kwargs"),
        *("morphemes", "bertjax_silent_tokens"),  # of tokenizers trained and written here
        *("add_prefix_space", "keep_accents", "remove_space", "split_by_punct", "legacy", "separate_vocabs"),
        *("extra_ids", "offset", "mask_token_sent"),  # of T5 and PEGASUS
    ),
    supported={
        _LISTS[2]: (None, {}),
        "vocab_type": (None, "spm"),
        "sp_model_kwargs": (None, {}),
        "fix_mistral_regex": (None, False),
    },
    inert={
        "how the tokenizer was loaded": _LOADING,
        "rows are padded at their end and masked, and the caller sets their length": _ROWS,
        "texts are encoded, and ids decoded, without them": (
            *(
                "clean_up_tokenization_spaces",
                "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
            ),
            *("errors", "trim_offsets", "unk_id", "source_lang", "target_lang", "model_input_names"),
        ),
        "the post_processor of tokenizer.json decides": ("add_bos_token", "add_eos_token"),
        "names of special tokens in a text are ordinary text": ("split_special_tokens",),
        "a text starts with the code of its language": ("src_lang", "tgt_lang", "language_codes"),
        "no task has a chat": ("chat_template", "response_template", "response_schema", "chat_control_tokens"),
    },
)
SPECIAL_TOKENS_MAP = FileKeys(applied=(*SPECIAL, *_LISTS[:2]))
