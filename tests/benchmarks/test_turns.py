import os

from benchmarks import turns


def measure(name, folder, wait):
    (folder / f"{name} compiled").touch()
    wait()
    found = sorted(path.name for path in folder.iterdir())
    (folder / f"{name} measured").touch()
    wait()  # does nothing from the second time on
    return {"seen": found}


def fail_or_die(name, wait):
    if name == "fails":
        raise ValueError("no\nmemory")
    wait()
    os._exit(3)


def test_cases_of_a_group_compile_before_any_is_measured_and_are_measured_in_turn(tmp_path):
    cases = [(name, tmp_path) for name in "abc"]
    found = {index: result["seen"] for index, result in turns.take_turns(measure, cases, 2, turns.Clock(1000))}
    assert found[0] == ["a compiled", "b compiled"]
    assert found[1] == ["a compiled", "a measured", "b compiled"]
    assert found[2] == ["a compiled", "a measured", "b compiled", "b measured", "c compiled"]


def test_errors_end_only_their_case():
    found = dict(turns.take_turns(fail_or_die, [("fails",), ("dies",), ("fails",)], 3, turns.Clock(1000)))
    assert found[1] == {"error": "the process ended with status 3"}
    assert found[0] == found[2] == {"error": "no memory"}
