"""Runs work on many machines with Apache Beam. The only module that imports apache_beam, and only on request."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bertjax.errors import UserError
from bertjax.settings import environment

T = TypeVar("T")

_LOCAL = "DirectRunner"
_KEY = "config key data.beam"


@dataclasses.dataclass(frozen=True)
class BeamConfig:
    """The Beam runner and its options.

    Attributes:
      runner: "DirectRunner" for processes of this machine, or the name of a cluster's runner ("DataflowRunner",
        "FlinkRunner", "SparkRunner", ...). "" disables Beam.
      options: options of the runner, written as on its command line: ("--flink_master=HOST:8081",).
    """

    runner: str = ""
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if any("multi_threading" in option for option in self.options):
            expected = "worker processes, because the runner can lose records in threads without an error"
            fix = f"remove the option; {_LOCAL} then starts data.workers processes"
            raise UserError(f"{_KEY}.options", got="direct_running_mode=multi_threading", expected=expected, fix=fix)
        if self.options and not self.runner:
            fix = f"set --config.data.beam.runner={_LOCAL}, or remove the options"
            raise UserError(f"{_KEY}.options", got=f"{self.options} without a runner", expected="no options", fix=fix)


def check(config: BeamConfig) -> None:
    """Raises UserError unless Apache Beam is installed and has the runner."""
    where = f"{_KEY}.runner={config.runner}"
    got = ""
    try:
        from apache_beam.runners.runner import create_runner

        create_runner(config.runner)
    except ImportError as error:
        got = f"a runner whose library is not installed ({error})"
    except ValueError:
        got = "an unknown runner"
    if got:
        expected = "an installed runner of Apache Beam, such as DirectRunner, DataflowRunner or FlinkRunner"
        fix = "pip install -e '.[beam]' (for Dataflow also 'apache-beam[gcp]'), or remove --config.data.beam"
        raise UserError(where, got=got, expected=expected, fix=fix)


def for_each(config: BeamConfig, workers: int, function: Callable[[T], object], items: Sequence[T]) -> None:
    """Calls a function on each item, on any worker and in any order.

    Args:
      config: the runner.
      workers: number of processes of the DirectRunner; 0 for one per core. Other runners ignore it.
      function: an importable function. It writes its results to files. It may run again on an item if a machine fails.
      items: picklable arguments.
    """
    import apache_beam as beam

    with importable(), beam.Pipeline(**pipeline_of(config, workers)) as pipeline:
        _ = pipeline | beam.Create(items) | beam.Reshuffle() | beam.Map(function)


def importable() -> contextlib.AbstractContextManager[None]:
    """Adds the folder of this package to PYTHONPATH, so that the DirectRunner's new interpreters can import it."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return environment(PYTHONPATH=os.pathsep.join(filter(None, paths)))


def pipeline_of(config: BeamConfig, workers: int) -> dict[str, Any]:
    """Returns the arguments `runner` and `options` of a pipeline that runs inside `importable`."""
    from apache_beam.options.pipeline_options import PipelineOptions

    if config.runner != _LOCAL:
        return {"runner": config.runner, "options": PipelineOptions(list(config.options))}
    ours = ["--direct_running_mode=multi_processing", f"--direct_num_workers={workers}"]
    ours.append("--default_sdk_harness_log_level=ERROR")  # by default each worker logs every step
    options = PipelineOptions([*ours, *config.options])
    return {"runner": _local_runner(options), "options": options}


def _local_runner(options: Any) -> Any:
    """Returns the runner that the DirectRunner wraps, because the DirectRunner first downloads another program."""
    from apache_beam.portability.api import beam_provision_api_pb2
    from apache_beam.runners.portability.fn_api_runner import fn_runner
    from apache_beam.runners.portability.portable_runner import JobServiceHandle

    encoded = JobServiceHandle.encode_pipeline_options(options.get_all_options())
    provision = beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded)
    return fn_runner.FnApiRunner(provision_info=fn_runner.ExtendedProvisionInfo(provision))
