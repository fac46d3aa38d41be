"""Plans for TPUs and GPUs by their own compilers, defined where these are installed."""

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bertjax.training import platforms
from tests.tools.planning.plans import HIDDEN, LENGTH, ROWS

ROOT = Path(__file__).parents[3]
_NOT_HERE = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS")  # they make tests on CPUs faster
ONE_LAYER = {"model__num_layers": 1, "data__vocab_size": 200, "model__attention_dropout": 0.0}
PLAIN = {"model__attention_backend": "xla", "model__attention_dropout": 0.1}
FSDP = {"mesh__data": 2, "mesh__fsdp": 4, "mesh__tensor": 2}


def planned(path, cases):
    """The plans of the cases, made in another process because the compilers read the environment."""
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_HERE}
    values = [(topology, {**ONE_LAYER, **values}) for topology, values in cases]
    command = [sys.executable, "-m", "tests.tools.planning.plans", json.dumps(values), path]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


def check(record, devices, memory, kernels=0):
    """Checks what is true of all plans. `kernels`: the operations on a device in kernels of attention."""
    assert record["fits"] and record["devices"] == devices and record["hbm_bytes"] == memory
    assert record["per_device"]["uncounted_loops"] == 0
    # Attention repeats products, and what the mesh does not divide is computed by several devices.
    flops = (record["per_device"]["flops"] - kernels) * devices
    assert (0.95 if kernels else 0.99) < flops / record["flops_per_step"] < 1.15
    assert all(math.isfinite(value) and value > 0 for value in record["seconds"].values())


if importlib.util.find_spec("libtpu"):  # without a compiler its tests are not collected, rather than skipped

    @pytest.fixture(scope="module")
    def on_tpus(tmp_path_factory):
        flash = {"model__attention_backend": "auto", "data__seq_len": 128, "model__max_positions": 128}
        return planned(tmp_path_factory.mktemp("plan") / "tpus.json", [("v5e:2x2", PLAIN), ("v5e:2x2", flash)])

    # The kernel of splash attention computes 7 products of 128 queries, although the only layer needs 6 queries.
    @pytest.mark.parametrize(("number", "kernels"), [(0, 0), (1, 7 * 2 * 128**2 * HIDDEN * ROWS // 4)])
    def test_a_slice_of_tpus(on_tpus, number, kernels):
        record = on_tpus[number]
        check(record, 4, int(15.75 * 2**30), kernels)
        (reduced,) = record["collectives"]["all-reduce"].values()
        size = record["bytes_per_device"]["parameters"]
        assert 0.9 * size < reduced["bytes"] < 2 * size
        assert record["compiler_seconds"] > record["seconds"]["compute"]
        assert "libtpu" in record["versions"]


if any(plugin.startswith("xla_cuda") for plugin in platforms.installed_plugins()):

    @pytest.fixture(scope="module")
    def on_gpus(tmp_path_factory):
        flash = {"model__attention_backend": "cudnn", "model__dtype": "bfloat16", **FSDP}
        return planned(tmp_path_factory.mktemp("plan") / "gpus.json", [("h100:8", PLAIN), ("h100:2x8", flash)])

    def test_a_host_of_gpus(on_gpus):
        record, _ = on_gpus
        check(record, 8, int(0.75 * 84942979072))
        rows = record["collectives"]["all-reduce"]
        assert list(rows) == ["NVLink"]
        size = record["bytes_per_device"]["parameters"]
        assert 0.9 * size < rows["NVLink"]["bytes"] < 2 * size
        assert "jax-cuda12-plugin" in record["versions"]

    def test_two_hosts_of_gpus_with_flash_attention(on_gpus):
        _, record = on_gpus
        check(record, 16, int(0.75 * 84942979072))
        assert {"NVLink", "network"} == set(record["collectives"]["all-reduce"])
        # Parameters are gathered on the hosts, which have all devices of the axes fsdp and tensor.
        gathered = record["collectives"]["all-gather"]
        assert gathered["NVLink"]["bytes"] > HIDDEN**2
        assert record["seconds"]["interconnect"] == pytest.approx(
            sum(row["seconds"] for rows in record["collectives"].values() for row in rows.values())
        )
        assert record["tokens_per_step"] == ROWS * LENGTH
