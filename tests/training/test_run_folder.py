"""What a run's folder remembers of how it began."""

import pytest

from bertjax.errors import UserError
from bertjax.training.run_folder import check_text


def test_a_run_that_has_begun_keeps_its_text(tmp_path):
    check_text(tmp_path, "one")
    check_text(tmp_path, "two")  # no update has been made on the first
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "valid/x": 1.0}\n{"step": 2, "train/loss": 1.0}\n')
    check_text(tmp_path, "two")
    with pytest.raises(UserError, match="got prepared text three; expected two, which the run began with"):
        check_text(tmp_path, "three")
    assert (tmp_path / "text_fingerprint").read_text() == "two\n"
