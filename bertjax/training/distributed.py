"""Several processes: joining them, and agreeing."""

import concurrent.futures
import time
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from bertjax.errors import UserError, choice

_SECONDS_BETWEEN_LOOKS = 1
_MESSAGE_BYTES = 1024
_DONE = "done"


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
    """Does `work` on process 0 while the others wait, however long it takes; all go on together.

    Process 0 works in a thread, so that all can ask each other every second how it stands: a single collective
    that waits for hours would run into its time limit.

    Raises:
      what `work` raised on process 0, there; UserError with its message on the others.
    """
    if jax.process_count() == 1:
        work()
        return
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(work) if is_first_process() else None
        while not (message := _broadcast(_state(future))):
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    if future:
        future.result()
    elif message != _DONE:
        raise UserError("process 0", got=message, expected="no error", fix="see what process 0 says")


def _state(future: concurrent.futures.Future[None] | None) -> str:
    """Nothing while the work goes on, then what came of it."""
    if future is None or not future.done():
        return ""
    return str(future.exception() or _DONE) or "an error"


def _broadcast(text: str) -> str:
    """Process 0's text, on all processes; cut to what fits."""
    code = np.frombuffer(text.encode()[:_MESSAGE_BYTES].ljust(_MESSAGE_BYTES, b"\0"), np.uint8)
    return bytes(np.asarray(multihost_utils.broadcast_one_to_all(code))).rstrip(b"\0").decode(errors="replace")


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
