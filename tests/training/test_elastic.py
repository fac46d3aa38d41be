"""A killed run that resumes with another number of processes sees the same batches."""

import pytest

from tests import processes, tiny
from tests.training.hashing_launch import hashing

STEPS, BATCH_SIZE = 16, 16


def hashes(folder):
    """The sha256 of each row of each batch; checks that all records of a row agree."""
    found = {}
    for path in folder.iterdir():
        for line in path.read_text().split("\n")[:-1]:
            index, row, digest = line.split()
            assert found.setdefault((int(index), int(row)), digest) == digest, f"row {row} of batch {index}"
    return found


@pytest.mark.slow
def test_the_number_of_processes_may_change_between_kills(tmp_path):
    text = tiny.write_text(tmp_path / "text.txt")
    values = {"num_steps": STEPS, "batch_size": BATCH_SIZE, "log_every": 1, "evaluate_every": 8}
    values |= {"checkpoint__save_every": 2, "optimizer__learning_rate": 1e-3, "model__num_layers": 1}
    for name in ("whole", "killed"):
        (tmp_path / f"{name}_hashes").mkdir()

    def started(count):
        return processes.started(
            tiny.arguments(text, tmp_path / "killed", **values),
            count,
            entry=("-m", "tests.training.hashing_launch", "--noreport"),
            environments=[{"BATCH_HASHES": str(tmp_path / "killed_hashes")}] * count,
        )

    with hashing(tmp_path / "whole_hashes"):
        assert tiny.run_on_one(*tiny.arguments(text, tmp_path / "whole", **values)).status is None
    for count, until, victim in ((2, 3, 1), (1, 7, 0)):
        with started(count) as some:
            processes.wait_for_step(tmp_path / "killed", until, some)
            some[victim].kill()
            for process in some:
                process.communicate(timeout=60)
                assert process.returncode != 0
        saved = max(int(path.name) for path in (tmp_path / "killed" / "checkpoints").iterdir() if path.name.isdigit())
        assert until - 2 <= saved < STEPS
    with started(2) as both:
        processes.finish(both)

    whole, killed = hashes(tmp_path / "whole_hashes"), hashes(tmp_path / "killed_hashes")
    trained = {(index, row) for index in range(STEPS) for row in range(BATCH_SIZE)}
    assert {key: whole[key] for key in trained} == {key: killed[key] for key in trained}
    assert len({whole[key] for key in trained}) > 0.9 * len(trained)
    lines = [processes.lines(tmp_path / name) for name in ("whole", "killed")]
    for name in ("train/loss", "valid/masked_lm_loss"):
        expected, got = ([line[name] for line in each if name in line] for each in lines)
        assert got == pytest.approx(expected, abs=1e-4)
        assert len(got) == (STEPS if name == "train/loss" else 2)
