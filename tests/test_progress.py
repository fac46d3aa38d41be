import logging

from bertjax import progress


def test_a_line_names_the_item_and_the_total(monkeypatch, caplog):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", -1)
    with caplog.at_level(logging.INFO, "bertjax.progress"):
        assert list(progress.track("a", "counting words", "block")) == ["a"]
        assert list(progress.track("ab", "training", "step", 2)) == ["a", "b"]
    assert caplog.messages == [
        "counting words: block 1",
        "training: step 1/2, ETA 00:00",
        "training: step 2/2, ETA 00:00",
    ]
