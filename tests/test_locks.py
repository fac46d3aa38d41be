"""The locks agree with requirements.txt and pyproject.toml, on each Python that is supported."""

import functools
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHONS = ("3.11.4", "3.12.0", "3.13.0")
MACHINES = (("linux", "Linux", "x86_64"), ("linux", "Linux", "aarch64"), ("darwin", "Darwin", "arm64"))
ENVIRONMENTS = [
    {
        "python_version": python.rpartition(".")[0],
        "python_full_version": python,
        "sys_platform": sys_platform,
        "platform_system": system,
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "extra": "",
    }
    for python in PYTHONS
    for sys_platform, system, machine in MACHINES
]
LEFT_OUT = {canonicalize_name(name) for name in PROJECT["tool"]["uv"]["pip"]["no-emit-package"]}
each_environment = pytest.mark.parametrize(
    "environment",
    ENVIRONMENTS,
    ids=lambda one: f"{one['python_version']}-{one['sys_platform']}-{one['platform_machine']}",
)


@functools.cache
def locked(name: str) -> tuple[tuple[Requirement, int], ...]:
    """The requirements of a lock, each with its number of hashes."""
    text = re.sub(r"(?m)^ *#.*\n", "", (ROOT / "locks" / name).read_text()).replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert lines
    parts = [[word for word in words if not word.startswith("--hash=sha256:")] for words in lines]
    hashes = (len(words) - len(part) for words, part in zip(lines, parts, strict=True))
    return tuple(zip((Requirement(" ".join(part)) for part in parts), hashes, strict=True))


def versions(requirements, environment) -> dict[str, str]:
    """The pinned version of each package in an environment."""
    found: dict[str, str] = {}
    for one in requirements:
        if one.marker is None or one.marker.evaluate(environment):
            assert canonicalize_name(one.name) not in found, f"{one.name} has two versions"
            assert str(one.specifier).startswith("=="), f"{one} is not pinned"
            found[canonicalize_name(one.name)] = str(one.specifier).removeprefix("==")
    return found


def direct(environment, *extras: str) -> dict[str, str]:
    """The versions that requirements.txt and extras pin."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines()]
    of_extras = [each for extra in extras for each in PROJECT["project"]["optional-dependencies"][extra]]
    requirements = [Requirement(text) for text in [*lines, *of_extras] if text]
    return versions([one for one in requirements if one.name != "bertjax"], environment)


@each_environment
@pytest.mark.parametrize(
    ("name", "extras"), [("runtime.txt", ["report"]), ("dev.txt", ["dev", "beam", "docs", "report", "slurm"])]
)
def test_a_lock_has_the_direct_pins(name, extras, environment):
    found = versions([requirement for requirement, _ in locked(name)], environment)
    expected = {package: pin for package, pin in direct(environment, *extras).items() if package not in LEFT_OUT}
    assert {package: found.get(package) for package in expected} == expected


@each_environment
def test_the_runtime_is_a_part_of_dev(environment):
    locks = (locked(f"{name}.txt") for name in ("runtime", "dev"))
    runtime, dev = (versions([requirement for requirement, _ in lock], environment) for lock in locks)
    assert runtime.items() <= dev.items()


def test_dev_names_all_extras_that_are_locked():
    text = next(each for each in PROJECT["project"]["optional-dependencies"]["dev"] if each.startswith("bertjax["))
    assert Requirement(text).extras == {"beam", "docs", "report", "slurm"}


def test_what_dev_leaves_out_has_the_version_of_its_metadata():
    pins = direct(ENVIRONMENTS[0], "dev")
    given = {each["name"]: each["version"] for each in PROJECT["tool"]["uv"]["dependency-metadata"]}
    assert given.keys() == LEFT_OUT
    assert given == {name: pins[name] for name in given}


def test_the_encoder_has_its_pin():
    ((requirement, _),) = locked("encoder.txt")
    assert str(requirement) == (ROOT / "locks" / "encoder.in").read_text().strip()


@pytest.mark.parametrize("name", ["runtime.txt", "dev.txt", "encoder.txt"])
def test_every_version_has_hashes_and_no_host_is_named(name):
    assert all(hashes for _, hashes in locked(name))
    assert "://" not in (ROOT / "locks" / name).read_text()
