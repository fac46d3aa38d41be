"""Our selection of sentences compared with PreSumm's own test, with and without trigram blocking.

golden/make_presumm_selection_golden.py makes the golden file; see test_presumm.py.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np

from bertjax.configs.bertsum_ext import get_config
from bertjax.decoding.selection import SelectionConfig, select

GOLDEN = Path(__file__).with_name("golden") / "presumm_selection.json"


def test_golden():
    documents = json.loads(GOLDEN.read_text())
    assert len(documents) == 100
    published = SelectionConfig(**get_config("presumm").selection.to_dict())
    rules = {"blocked": published, "free": dataclasses.replace(published, block_ngrams=0)}
    for document in documents:
        for name, config in rules.items():
            scores = np.array(document["scores"], np.float32)
            assert select(scores, document["sentences"], config).chosen == tuple(document[name])
    # Blocking changes many summaries, keeps others, and shortens some.
    changed = sum(document["blocked"] != document["free"] for document in documents)
    shorter = sum(len(document["blocked"]) < len(document["free"]) for document in documents)
    assert 50 < changed < 90 and shorter > 10
