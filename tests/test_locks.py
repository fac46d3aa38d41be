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


def of_extra(extra, environment):
    """The requirements of an extra, with those of the extras that it names."""
    for requirement in map(Requirement, PROJECT["project"]["optional-dependencies"][extra]):
        if requirement.name != "bertjax":
            yield requirement
        elif requirement.marker is None or requirement.marker.evaluate(environment):
            for name in requirement.extras:
                yield from of_extra(name, environment)


def direct(environment, extra: str) -> dict[str, str]:
    """The versions that requirements.txt and an extra pin."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines()]
    requirements = [*map(Requirement, filter(None, lines)), *of_extra(extra, environment)]
    return versions([one for one in requirements if one.specifier], environment)


@each_environment
@pytest.mark.parametrize(("name", "extra"), [("runtime.txt", "report"), ("test.txt", "test"), ("dev.txt", "dev")])
def test_a_lock_has_the_direct_pins(name, extra, environment):
    found = versions([requirement for requirement, _ in locked(name)], environment)
    expected = {package: pin for package, pin in direct(environment, extra).items() if package not in LEFT_OUT}
    assert {package: found.get(package) for package in expected} == expected


@each_environment
def test_a_smaller_lock_is_a_part_of_the_larger_one(environment):
    locks = (locked(f"{name}.txt") for name in ("runtime", "test", "dev"))
    runtime, test, dev = (versions([requirement for requirement, _ in lock], environment) for lock in locks)
    assert runtime.items() <= test.items() <= dev.items()


def test_what_dev_leaves_out_has_the_version_of_its_metadata():
    pins = direct(ENVIRONMENTS[0], "dev")
    given = {each["name"]: each["version"] for each in PROJECT["tool"]["uv"]["dependency-metadata"]}
    assert given.keys() == LEFT_OUT
    assert given == {name: pins[name] for name in given}


def test_the_encoder_has_its_pin():
    ((requirement, _),) = locked("encoder.txt")
    assert str(requirement) == (ROOT / "locks" / "encoder.in").read_text().strip()


@pytest.mark.parametrize("name", ["runtime.txt", "test.txt", "dev.txt", "encoder.txt"])
def test_every_version_has_hashes_and_no_host_is_named(name):
    assert all(hashes for _, hashes in locked(name))
    assert "://" not in (ROOT / "locks" / name).read_text()
