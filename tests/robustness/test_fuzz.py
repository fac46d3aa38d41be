"""Fuzzing of every reader: damaged files, and the definition of a wrong success."""

from collections import Counter
from unittest import mock

import pytest

import bertjax
from bertjax import model
from bertjax.errors import UserError
from tests import published, tiny
from tests.robustness import fuzz, fuzz_checks, fuzz_predictions, fuzz_targets
from tests.robustness.fuzz_checks import Part


def test_missing_duplicate_and_misplaced_results_are_faults():
    parts = [Part("a", 1, 1), Part("?", 0, 1), Part("b", 1, 1)]
    known = {"a": 1.0, "b": {"x": [2.0]}}
    same_b = {"x": [2.0001]}  # numbers differ in their last digits
    assert not fuzz_checks.fault(parts, known, [1.0, same_b])
    assert not fuzz_checks.fault(parts, known, [1.0, "anything", same_b])
    for results in ([1.0], [same_b, 1.0], [1.0, "x", "x", same_b], [1.0, *[same_b] * 3], [1.1, same_b]):
        assert fuzz_checks.fault(parts, known, results)


@pytest.fixture
def fuzzing(tmp_path):
    return fuzz.prepare(tmp_path, tmp_path, "text,table,choices,conll,squad,articles")


def test_damaged_files_give_results_or_user_errors(fuzzing):
    cases = [f"0/{name}/{number}" for name in fuzzing.targets for number in range(8)]
    outcomes = Counter(fuzzing.case(case)[0] for case in cases)
    assert set(outcomes) == {"success", "refused"}
    assert fuzzing.case(cases[0]) == fuzzing.case(cases[0])


def test_damaged_inputs_give_predictions_or_user_errors(tmp_path):
    published.write_huggingface(tmp_path / "masks")
    files, read = {"in.txt": b"the cat\ndog sees\nbird\n"}, fuzz_predictions.features(tmp_path, tmp_path)
    target = fuzz_targets.Target("features", 1, files, read, fuzz_checks.lines, drops=False)
    with tiny.few_devices(1), mock.patch.object(model, "Model", fuzz_predictions.CachedModels(tmp_path)):
        known = {"features": fuzz.known(target, tmp_path / "case")}
        assert list(known["features"]) == [b"the cat", b"dog sees", b"bird"]
        fuzzing = fuzz.Fuzz({"features": target}, known, tmp_path)
        assert {fuzzing.case(f"0/features/{number}")[0] for number in range(12)} == {"success", "refused"}


@pytest.mark.parametrize(
    ("ours", "theirs", "outcome"),
    [
        (lambda _: 1, lambda _: 2, "wrong success"),
        (lambda _: 1, lambda _: 1, "success"),
        (lambda _: 1, lambda folder: (folder / "no file").read_text(), "success"),
        (bertjax.load, lambda _: 1, "refused"),
        (lambda folder: {}[folder], lambda _: 1, "traceback"),
    ],
)
def test_silent_differences_from_the_reference_are_findings(tmp_path, ours, theirs, outcome):
    from tests.robustness import fuzz_settings

    kind = fuzz_settings.Kind(lambda folder: folder, ("tokenizer_config.json",), ours, theirs)
    (tmp_path / "a").mkdir()
    with mock.patch.object(fuzz_settings, "KINDS", {"a": kind}):
        assert fuzz_settings.case("0/a/0", tmp_path)[0] == outcome


def test_findings_are_reported(fuzzing):
    name, target = next(iter(fuzzing.targets.items()))

    def reads(read):
        broken = fuzz.Fuzz({name: fuzz_targets.dataclasses.replace(target, read=read)}, fuzzing.known, fuzzing.folder)
        return {broken.case(f"0/{name}/{number}")[0] for number in range(5)}

    def fails(error):
        raise error

    assert reads(lambda *_: fails(KeyError("x"))) == {"traceback"}
    assert reads(lambda *_: fails(UserError("x", got="", expected="", fix=""))) == {"refused"}
    assert "wrong success" in reads(lambda *_: [])
