"""Work on many machines: the only module that imports apache_beam, where a config asks for it."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bertjax.errors import UserError

T = TypeVar("T")

_LOCAL = "DirectRunner"
_KEY = "config key data.beam"


@dataclasses.dataclass(frozen=True)
class BeamConfig:
    """Where Apache Beam is to work.

    Attributes:
      runner: "DirectRunner" for processes of this machine, or the name of a cluster's: "DataflowRunner",
        "FlinkRunner", "SparkRunner", ...; "" for no Beam.
      options: what the runner is told, as on its command line: ("--flink_master=HOST:8081",).
    """

    runner: str = ""
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if any("multi_threading" in option for option in self.options):
            raise UserError(
                f"{_KEY}.options",
                got="direct_running_mode=multi_threading",
                expected="processes: with threads the runner has lost records without a word",
                fix=f"leave it out: {_LOCAL} has data.workers processes",
            )
        if self.options and not self.runner:
            fix = f"set --config.data.beam.runner={_LOCAL}, or leave the options out"
            raise UserError(f"{_KEY}.options", got=f"{self.options}, and no runner", expected="none", fix=fix)


def check(config: BeamConfig) -> None:
    """Raises UserError unless the library is there and has the runner."""
    where, got = f"{_KEY}.runner={config.runner}", ""
    try:
        from apache_beam.runners.runner import create_runner

        create_runner(config.runner)
    except ImportError as error:
        got = f"a library that is not there ({error})"
    except ValueError:
        got = "a name that Beam does not know"
    if got:
        raise UserError(
            where,
            got=got,
            expected="a runner of Apache Beam, DirectRunner, DataflowRunner, FlinkRunner, ..., and what it needs",
            fix="pip install -e '.[beam]' (for Dataflow 'apache-beam[gcp]' too), or leave out --config.data.beam",
        )


def for_each(config: BeamConfig, workers: int, function: Callable[[T], object], items: Sequence[T]) -> None:
    """Calls a function with each item: somewhere, in any order, and again where a machine fails.

    Args:
      config: where.
      workers: processes, if on this machine; 0 for one each core.
      function: importable; what it makes is in files.
      items: what it is called with.
    """
    import apache_beam as beam

    with beam.Pipeline(**pipeline_of(config, workers)) as pipeline:
        _ = pipeline | beam.Create(items) | beam.Reshuffle() | beam.Map(function)


def pipeline_of(config: BeamConfig, workers: int) -> dict[str, Any]:
    """The runner and the options of a pipeline; see `for_each`."""
    from apache_beam.options.pipeline_options import PipelineOptions

    if config.runner != _LOCAL:
        return {"runner": config.runner, "options": PipelineOptions(list(config.options))}
    # Its workers are other programs, which have to find this package wherever they begin.
    root = str(Path(__file__).parents[2])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, *(path for path in paths if path != root)]))
    ours = ["--direct_running_mode=multi_processing", f"--direct_num_workers={workers}"]
    ours.append("--default_sdk_harness_log_level=ERROR")  # else each worker tells of all that it does
    options = PipelineOptions([*ours, *config.options])
    return {"runner": _local_runner(options), "options": options}


def _local_runner(options: Any) -> Any:
    """What Beam's DirectRunner is in the end; by itself it first looks for another program, which it downloads."""
    from apache_beam.portability.api import beam_provision_api_pb2
    from apache_beam.runners.portability.fn_api_runner import fn_runner
    from apache_beam.runners.portability.portable_runner import JobServiceHandle

    told = JobServiceHandle.encode_pipeline_options(options.get_all_options())
    provision = beam_provision_api_pb2.ProvisionInfo(pipeline_options=told)
    return fn_runner.FnApiRunner(provision_info=fn_runner.ExtendedProvisionInfo(provision))
