"""Made-up run folders."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

# Not skipped but left out: where there is no browser, there is nothing that these could say.
collect_ignore = (
    [] if any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))) else ["test_browser.py"]
)


def lines(steps: list[int]) -> list[dict]:
    """A log with baselines of 6 and 0.6, a validation loss of 7 - step / 100 and 1,000 tokens a step."""
    baselines = {"valid/masked_lm_unigram_loss": 6.0, "valid/next_sentence_majority_accuracy": 0.6}
    found: list[dict] = [{"step": 0, **baselines}]
    for step in steps:
        train = {"step": step, "train/tokens_per_second": 500.0, "train/step_seconds": 2.0}
        valid = {"step": step}
        for record, split, extra in ((train, "train", 0.5), (valid, "valid", 0.0)):
            record[f"{split}/masked_lm_loss"] = 7 - step / 100 + extra
            record[f"{split}/masked_lm_accuracy"] = step / 1000
            record[f"{split}/next_sentence_accuracy"] = 0.5 + step / 2000
        found += [train, valid]
    return found


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str, records: list[dict], **config: object) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        values = {"experiment": "bert_pretraining", "objective": "masked_lm", "num_steps": 300, "init_from": ""}
        (folder / "config.json").write_text(json.dumps({**values, **config}))
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return folder

    return make
