"""Makes the files in this folder with torch, in both of its formats: a state dict, and a nested container.

Usage: python tests/interop/golden/make_torch_files.py
"""

from collections import OrderedDict
from pathlib import Path

import torch

GOLDEN = Path(__file__).parent


def make_state() -> OrderedDict:
    """Makes a state dict with all supported contents; `test_torch_pickle.py` builds the same by hand."""
    grid = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    state = OrderedDict(
        grid=grid,
        transposed=grid.T,
        row=grid[1],
        half=grid.half(),
        bfloat16=grid.bfloat16(),
        parameter=torch.nn.Parameter(grid + 1),
        position_ids=torch.arange(4).expand((1, -1)),
        mask=torch.tensor([1, 0, 1], dtype=torch.uint8),
        scalar=torch.tensor(2.5),
        empty=torch.zeros(0, 3),
    )
    state._metadata = OrderedDict([("", {"version": 1})])  # as in Module.state_dict()
    return state


def make_nested() -> dict:
    """Makes a container with everything that surrounds tensors in the checkpoints of training scripts."""
    grid = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    return {
        "model": OrderedDict(weight=grid),
        "optim": {"state": {0: {"step": 7, "exp_avg": grid + 1}}, "betas": (0.9, 0.999), "flags": [True, False, None]},
        "note": "größer",
        "large": 2**70,
    }


def make(folder: Path) -> None:
    """Writes all files."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(make_state(), folder / "state_zip.bin")
    torch.save(make_state(), folder / "state_legacy.bin", _use_new_zipfile_serialization=False)
    torch.save(make_nested(), folder / "nested_zip.pt")
    torch.save(make_nested(), folder / "nested_legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(make_nested(), folder / "nested_protocol_4.pt", pickle_protocol=4)


if __name__ == "__main__":
    make(GOLDEN / "torch")
