import numpy as np
import pytest

from benchmarks import common

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from benchmarks.torch_peer import PredictedOnly, TorchStep, predicted_batch, torch_batch  # noqa: E402

SHAPE = common.Shape.parse("tiny:4x32:1000")


@pytest.fixture
def batch():
    """A batch without padding whose last predictions do not count."""
    (spec,) = common.read_config(SHAPE, {}).example().task.batch_specs()
    made = common.made_up_batch(spec, SHAPE.vocab_size)
    made["masked_weights"][:, -2:] = 0
    return made


def small_bert():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return transformers.BertForPreTraining(transformers.BertConfig(vocab_size=SHAPE.vocab_size, **sizes))


def tensors(arrays):
    return {name: torch.tensor(array) for name, array in arrays.items()}


def test_logits_at_predicted_positions_give_the_same_loss(batch):
    bert = small_bert().eval()
    assert batch["masked_weights"].min() == 0
    with torch.no_grad():
        plain = bert(**tensors(torch_batch(batch))).loss
        assert float(PredictedOnly(bert)(**tensors(predicted_batch(batch)))) == pytest.approx(float(plain), rel=1e-6)


@pytest.mark.parametrize("strong", [False, True])
def test_steps_change_parameters(batch, strong):
    step = TorchStep(SHAPE, [batch], compiled=False, bfloat16=True, strong=strong)
    before = [p.detach().clone() for p in step._parameters]
    step(1)
    assert all(np.isfinite(p.detach().numpy()).all() for p in step._parameters)
    assert sum(not torch.equal(p, q) for p, q in zip(step._parameters, before, strict=True)) > len(before) / 2


def test_compiled_attention_has_no_mask(batch):
    """transformers makes a mask of ones under torch.compile, with which attention does not use flash kernels."""
    masks = []

    def backend(module, _):
        masks.extend(node.kwargs["attn_mask"] for node in module.graph.nodes if "scaled_dot" in str(node.target))
        return module.forward

    torch.compile(PredictedOnly(small_bert()), backend=backend, fullgraph=True)(**tensors(predicted_batch(batch)))
    assert masks == [None, None]
