"""The keys of the files of published folders. Those of config.json are listed by the family of the model."""

import contextlib
import os
from pathlib import Path
from typing import Any

from bertjax.data.text.tokenizer_keys import SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG
from bertjax.decoding.generation import GENERATION
from bertjax.errors import UserError
from bertjax.file_keys import FileKeys
from bertjax.interop.json_files import read_json

MODULES_FILE = "modules.json"
SETTINGS_FILE = "config_sentence_transformers.json"
CROSS_ENCODER = "CrossEncoder"  # its model_type
# Flags of pooling in folders of earlier versions, in the order in which their vectors are concatenated.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# The classes of torch for the activations of `DenseConfig`.
ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
}
_OF_VECTORS = dict.fromkeys(("module_input_name", "module_output_name"), (None, "sentence_embedding"))
# The outputs of the encoder of a SentenceTransformer and of a CrossEncoder.
_OUTPUTS = ({"text": {"method": "forward", "method_output_name": name}} for name in ("last_hidden_state", "logits"))

SETTINGS = FileKeys(
    applied=("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "activation_fn"),
    supported={"model_type": ("SentenceTransformer", CROSS_ENCODER), "max_active_dims": (None,)},
    inert={
        "they state versions": ("__version__", "requirements"),
        "all weights are read as float32": ("keep_in_fp32_modules",),
    },
)
MODULE = FileKeys(
    applied=("type", "path", "name"), inert={"the order is that of the list": ("idx",), "for callers": ("kwargs",)}
)
TEXTS = FileKeys(
    applied=("max_seq_length", "do_lower_case"),
    supported={
        "transformer_task": ("feature-extraction", "sequence-classification"),
        "modality_config": tuple(_OUTPUTS),
        "module_output_name": ("token_embeddings", "scores"),
        **dict.fromkeys(("query_length", "document_length", "query_expansion", "tokenizer_name_or_path"), (None,)),
        **dict.fromkeys(("processing_kwargs", "processor_kwargs", "tokenizer_args"), (None, {})),
        **dict.fromkeys(("config_kwargs", "config_args"), (None, {})),
    },
    inert={"how torch loads and computes": ("unpad_inputs", "model_args", "model_kwargs", "backend", "cache_dir")},
)
# By the class of a module.
MODULES = {
    "Transformer": FileKeys(),
    "Pooling": FileKeys(
        applied=("pooling_mode", *POOLING_FLAGS, "include_prompt"),
        inert={"the size of the encoder's vectors": ("embedding_dimension", "word_embedding_dimension")},
    ),
    "Dense": FileKeys(
        applied=("in_features", "out_features", "bias"),
        supported={"activation_function": tuple(ACTIVATIONS), "use_residual": (None, False), **_OF_VECTORS},
    ),
    "Normalize": FileKeys(supported=_OF_VECTORS),
}
_FILES = {
    SETTINGS_FILE: SETTINGS,
    "tokenizer_config.json": TOKENIZER_CONFIG,
    "special_tokens_map.json": SPECIAL_TOKENS_MAP,
    "generation_config.json": GENERATION,
}


def texts_file(folder: Path) -> Path:
    """Returns the file of the settings of texts, whose name in early versions has the family of the encoder."""
    return min(folder.glob("sentence_*_config.json"), default=folder / "sentence_bert_config.json")


def unknown(folder: Path) -> str:
    """Returns the keys that no table has, as "FILE: KEY, KEY; ..."; "" if there are none.

    Files that cannot be read are left out. Whatever needs them reports it.
    """
    modules = [module for module in _read(folder / MODULES_FILE, list) if isinstance(module, dict)]
    names = {MODULES_FILE: {key for module in modules for key in module} - MODULE.names}
    files = {folder / name: table for name, table in _FILES.items()} | {texts_file(folder): TEXTS}
    for module in modules:
        kind = str(module.get("type")).rpartition(".")[2]
        if kind in MODULES and kind != "Transformer":
            files[folder / str(module.get("path")) / "config.json"] = MODULES[kind]
    for path, table in files.items():
        names[os.path.relpath(path, folder)] = _read(path, dict).keys() - table.names
    return "; ".join(f"{name}: {', '.join(sorted(keys))}" for name, keys in names.items() if keys)


def _read(path: Path, kind: type) -> Any:
    """Returns the content of a JSON file, a dict or a list; an empty one if there is none."""
    with contextlib.suppress(UserError):
        return read_json(path, kind)
    return kind()
