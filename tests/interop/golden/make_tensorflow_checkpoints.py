"""Makes the checkpoints in this folder with TensorFlow 2.21.

Usage: python tests/interop/golden/make_tensorflow_checkpoints.py, with tensorflow-cpu installed. The script does not
use bertjax. values.npz contains the numbers that TensorFlow reads back, in the order of the names. outputs.npz contains
the outputs of BERT with the weights.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
GOLDEN = Path(__file__).parent
CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 8,
    "initializer_range": 0.02,
    "intermediate_size": 12,
    "max_position_embeddings": 10,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": 30,
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwx", "##y"]


def dense(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def norm(name: str, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/LayerNorm/beta": (size,), f"{name}/LayerNorm/gamma": (size,)}


def bert_shapes() -> dict[str, tuple[int, ...]]:
    """The variables of run_pretraining.py."""
    h, i = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    shapes = {
        "bert/embeddings/word_embeddings": (CONFIG["vocab_size"], h),
        "bert/embeddings/position_embeddings": (CONFIG["max_position_embeddings"], h),
        "bert/embeddings/token_type_embeddings": (CONFIG["type_vocab_size"], h),
        **norm("bert/embeddings", h),
    }
    for layer in range(CONFIG["num_hidden_layers"]):
        name = f"bert/encoder/layer_{layer}"
        for part in ("query", "key", "value"):
            shapes |= dense(f"{name}/attention/self/{part}", h, h)
        shapes |= dense(f"{name}/attention/output/dense", h, h) | norm(f"{name}/attention/output", h)
        shapes |= dense(f"{name}/intermediate/dense", h, i)
        shapes |= dense(f"{name}/output/dense", i, h) | norm(f"{name}/output", h)
    shapes |= dense("bert/pooler/dense", h, h) | dense("cls/predictions/transform/dense", h, h)
    shapes |= norm("cls/predictions/transform", h) | {"cls/predictions/output_bias": (CONFIG["vocab_size"],)}
    return shapes | {"cls/seq_relationship/output_weights": (2, h), "cls/seq_relationship/output_bias": (2,)}


def save(prefix: Path, make_variables: Callable[[], object], **options: object) -> None:
    with tf.Graph().as_default():
        make_variables()
        with tf1.Session(config=tf1.ConfigProto(device_count={"CPU": 2})) as session:
            session.run(tf1.global_variables_initializer())
            tf1.train.Saver(**options).save(session, str(prefix), write_meta_graph=False, write_state=False)


def write_values(prefix: Path) -> None:
    reader = tf.train.load_checkpoint(str(prefix))
    names = [n for n, dtype in reader.get_variable_to_dtype_map().items() if dtype not in (tf.string, tf.complex64)]
    values = [np.asarray(reader.get_tensor(name), np.float32).ravel() for name in sorted(names)]
    np.savez_compressed(prefix.parent / "values.npz", names=sorted(names), values=np.concatenate(values))


def make_google(folder: Path) -> None:
    """Writes a folder in the form of google-research/bert, including the optimizer's slots."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)

    def variables() -> None:
        for name, shape in bert_shapes().items():
            for slot in ("", "/adam_m", "/adam_v"):
                value = rng.normal(1.0 if name.endswith("gamma") else 0.0, 0.5, shape).astype(np.float32)
                tf1.get_variable(name + slot, initializer=value)
        tf1.get_variable("global_step", initializer=np.int64(20))

    save(folder / "bert_model.ckpt", variables)
    write_values(folder / "bert_model.ckpt")
    (folder / "bert_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    ids = rng.integers(0, CONFIG["vocab_size"], (2, 7))
    types = np.repeat([[0, 0, 0, 1, 1, 1, 1]], 2, axis=0)
    logits, relationship = bert(tf.train.load_checkpoint(str(folder / "bert_model.ckpt")).get_tensor, ids, types)
    np.savez_compressed(folder / "outputs.npz", ids=ids, types=types, logits=logits, relationship=relationship)


def bert(value: Callable[[str], np.ndarray], ids: np.ndarray, types: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """BERT without dropout and padding, as in the paper. Returns its logits for words and for the next sentence."""

    def project(x: tf.Tensor, name: str) -> tf.Tensor:
        return x @ value(f"{name}/kernel") + value(f"{name}/bias")

    def normalize(x: tf.Tensor, name: str) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, -1, keepdims=True)
        scale, shift = value(f"{name}/LayerNorm/gamma"), value(f"{name}/LayerNorm/beta")
        return tf.nn.batch_normalization(x, mean, variance, shift, scale, 1e-12)

    def attend(x: tf.Tensor, name: str) -> tf.Tensor:
        q, k, v = (
            tf.reshape(project(x, f"{name}/self/{part}"), (*ids.shape, CONFIG["num_attention_heads"], -1))
            for part in ("query", "key", "value")
        )
        scores = tf.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(np.float32(q.shape[-1]))
        return tf.reshape(tf.einsum("bhqk,bkhd->bqhd", tf.nn.softmax(scores), v), x.shape)

    words, table = value("bert/embeddings/word_embeddings"), "bert/embeddings"
    x = tf.gather(words, ids) + tf.gather(value(f"{table}/token_type_embeddings"), types)
    x = normalize(x + value(f"{table}/position_embeddings")[: ids.shape[1]], table)
    for layer in range(CONFIG["num_hidden_layers"]):
        name = f"bert/encoder/layer_{layer}"
        attended = project(attend(x, f"{name}/attention"), f"{name}/attention/output/dense")
        x = normalize(x + attended, f"{name}/attention/output")
        inner = tf.nn.gelu(project(x, f"{name}/intermediate/dense"), approximate=False)
        x = normalize(x + project(inner, f"{name}/output/dense"), f"{name}/output")
    pooled = tf.tanh(project(x[:, 0], "bert/pooler/dense"))
    relationship = pooled @ tf.transpose(value("cls/seq_relationship/output_weights"))
    name = "cls/predictions/transform"
    inner = normalize(tf.nn.gelu(project(x, f"{name}/dense"), approximate=False), name)
    logits = inner @ tf.transpose(words) + value("cls/predictions/output_bias")
    return logits.numpy(), (relationship + value("cls/seq_relationship/output_bias")).numpy()


def make_partitioned(folder: Path) -> None:
    """Writes variables that are partitioned along one axis and along both, in three files."""
    folder.mkdir(parents=True, exist_ok=True)

    def variables() -> None:
        normal = tf1.random_normal_initializer(seed=1)
        with tf1.variable_scope("part"):
            tf1.get_variable("rows", (7, 2), tf.float32, normal, partitioner=tf1.fixed_size_partitioner(3, axis=0))
            tf1.get_variable("columns", (2, 200), tf.float32, normal, partitioner=tf1.fixed_size_partitioner(2, axis=1))
        with tf.device("/cpu:1"):
            tf1.get_variable("whole", initializer=np.arange(3, dtype=np.float32))

    save(folder / "model.ckpt-7", variables, sharded=True)
    write_values(folder / "model.ckpt-7")


def make_types(folder: Path) -> None:
    """Writes one tensor of each type, a scalar and an empty tensor; also the old format, by hand."""
    folder.mkdir(parents=True, exist_ok=True)
    types = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool", "complex64")

    def variables() -> None:
        for name in types:
            tf1.get_variable(name, initializer=tf.cast(tf.constant([[0, 1, 2], [3, 4, 5]]), name))
        tf1.get_variable("string", initializer=tf.constant(["a", "bcd"]))
        tf1.get_variable("scalar", initializer=np.float32(2.5))
        tf1.get_variable("empty", initializer=np.zeros((0, 3), np.float32))

    save(folder / "model.ckpt", variables)
    write_values(folder / "model.ckpt")
    one = np.arange(3, dtype=np.float32)
    save(folder / "old.ckpt", lambda: tf1.get_variable("one", initializer=one), write_version=tf1.train.SaverDef.V1)


def make_object_based(folder: Path) -> None:
    """Writes a model with its optimizer through tf.train.Checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3), tf.keras.layers.Dense(2)])
    model.set_weights([np.arange(w.size, dtype=np.float32).reshape(w.shape) for w in model.get_weights()])
    checkpoint = tf.train.Checkpoint(model=model, step=tf.Variable(9, dtype=tf.int64))
    checkpoint.write(str(folder / "ckpt-1"))
    write_values(folder / "ckpt-1")


if __name__ == "__main__":
    make_google(GOLDEN / "uncased_L-2_H-8_A-2")
    make_partitioned(GOLDEN / "partitioned")
    make_types(GOLDEN / "types")
    make_object_based(GOLDEN / "object_based")
