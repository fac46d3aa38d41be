"""Several processes: joining them, and agreeing."""

import logging
import time
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from bertjax.errors import UserError, choice

_log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 1
_LOOKS_BETWEEN_LINES = 60


def initialize(mode: str, coordinator_address: str, num_processes: int, process_id: int) -> None:
    """Joins the processes of a run; before anything else touches a device.

    Args:
      mode: "off"; "on"; or "auto", where a cluster that JAX knows (TPU pods, SLURM, Open MPI) is joined if there
        is one.
      coordinator_address, num_processes, process_id: for "on" outside such a cluster.
    """
    choice(mode, ("auto", "on", "off"), "--distributed")
    if mode == "off":
        return
    if coordinator_address:
        jax.distributed.initialize(coordinator_address, num_processes, process_id)
        return
    try:
        jax.distributed.initialize()
    except ValueError as error:
        if mode == "on":
            raise UserError(
                "--distributed=on",
                got="no cluster that JAX knows",
                expected="a TPU pod, SLURM or Open MPI, or the address of the first process",
                fix="give --coordinator_address=HOST:PORT --num_processes=N --process_id=I to each process",
            ) from error


def is_first_process() -> bool:
    """Whether this is the process that writes what the run has one of."""
    return jax.process_index() == 0


def on_first_process(work: Callable[[], None]) -> None:
    """Does `work` on process 0, and goes on together when it is done."""
    if jax.process_index() == 0:
        work()
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("on_first_process")


def wait_for_first_process(work: Callable[[], None], is_finished: Callable[[], bool]) -> None:
    """Does `work` on process 0, while the others look whether it is finished.

    They look at the file system that all share, since a collective would run into its time limit:
    preparing text may take hours.
    """
    if jax.process_index() == 0:
        work()
    looks = 0
    while not is_finished():
        if looks % _LOOKS_BETWEEN_LINES == 0:
            _log.info("process %d waits for what process 0 prepares", jax.process_index())
        looks += 1
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def agree(value: str, what: str) -> None:
    """Raises UserError unless all processes have the same value."""
    if jax.process_count() == 1:
        return
    code = np.frombuffer(value.encode().ljust(64)[:64], np.uint8)
    codes = multihost_utils.process_allgather(code)
    values = [bytes(row).decode().strip() for row in np.asarray(codes)]
    if len(set(values)) > 1:
        raise UserError(
            what,
            got=", ".join(f"process {i}: {value}" for i, value in enumerate(values)),
            expected="the same on all processes",
            fix="let all processes see the same files, through a shared file system",
        )
