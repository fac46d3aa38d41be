"""Runs with several processes: joining them, comparing their values, and ending together on failure."""

import atexit
import concurrent.futures
import contextlib
import functools
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from bertjax.config import choice
from bertjax.errors import UserError

_log = logging.getLogger(__name__)

_POLL_SECONDS = 1
_MESSAGE_BYTES = 1024
_DONE = "done"
# Time limits for: a missing heartbeat, and the other processes to exit. Each is below a minute.
_SILENT_SECONDS = 30
_END_SECONDS = 30
# JAX aborts with a stack trace this long after a join has failed, if the process has not exited yet.
_ABORT_SECONDS = 60
# Parts of the messages of collectives and JAX's coordination service when another process is gone.
_GONE = re.compile("Gloo|NCCL|[Cc]oordination|UNAVAILABLE|DEADLINE_EXCEEDED")
# Environment variables with the number of processes, of launchers that JAX may not know.
_NUM_STARTED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
# Reads lines until its input closes, then prints the last line unless it is empty.
_PRINT_LAST_LINE = """trap '' HUP INT TERM
while read -r line; do last=$line; done
[ -z "$last" ] || printf '%s\\n' "$last" >&2"""


_GIVE_ADDRESS = "pass --coordinator_address=HOST:PORT --num_processes=N --process_id=I to each process"


class ExitMessage:
    """A message that is printed if this process is killed or aborts, so that Python cannot print it.

    JAX calls abort() when another process is gone. A shell in a separate process therefore prints the message.
    """

    def __init__(self, message: object) -> None:
        """Starts the shell with the first message, of one line."""
        self._shell = subprocess.Popen(["sh", "-c", _PRINT_LAST_LINE], stdin=subprocess.PIPE, text=True)
        self.change(message)

    def change(self, message: object) -> None:
        """Replaces the message by another one, of one line."""
        assert self._shell.stdin
        self._shell.stdin.write(f"{message}\n")
        self._shell.stdin.flush()

    def cancel(self) -> None:
        """Ends the shell without a message."""
        self._shell.communicate("\n")


def initialize(
    mode: str, coordinator_address: str, num_processes: int, process_id: int, join_timeout: int = 300
) -> None:
    """Joins the processes of a run. Must be called before anything uses a device.

    A process that cannot join exits with a message and status 1. If a process dies or cannot be reached later, the
    others exit within a minute, with a message and a nonzero status.

    Args:
      mode: "off"; "on"; or "auto", which joins a cluster that JAX detects (TPU pods, SLURM, Open MPI up to version 4),
        if there is one.
      coordinator_address, num_processes, process_id: needed with "on" outside such a cluster.
      join_timeout: the seconds to wait for all processes.
    Raises:
      UserError: if flags contradict each other, or if several processes were started together but cannot be joined.
    """
    choice(mode, ("auto", "on", "off"), "--distributed")
    _check_flags(coordinator_address, num_processes, process_id, join_timeout)
    if mode == "off":
        return
    message = ExitMessage(f"error: {_no_join(coordinator_address, num_processes, join_timeout)}")
    timer = threading.Timer(join_timeout, os._exit, [1])
    timer.daemon = True
    timer.start()
    join = functools.partial(
        jax.distributed.initialize,
        initialization_timeout=join_timeout + _ABORT_SECONDS,
        heartbeat_timeout_seconds=_SILENT_SECONDS,
        shutdown_timeout_seconds=_END_SECONDS,
    )
    try:
        join(*((coordinator_address, num_processes, process_id) if coordinator_address else ()))
    except ValueError as error:
        message.cancel()
        if mode == "on":
            got = "no cluster that JAX detects"
            expected = "a TPU pod, SLURM or Open MPI up to version 4, or the address of process 0"
            raise UserError("--distributed=on", got=got, expected=expected, fix=_GIVE_ADDRESS) from error
        _check_alone()
        return
    except jax.errors.JaxRuntimeError as error:
        message.cancel()
        expected = "process 0 to listen at its address"
        fix = "choose a free port on the machine of process 0"
        raise UserError("--coordinator_address", got=str(error), expected=expected, fix=fix) from error
    finally:
        timer.cancel()
    name = f"process {process_id} of {num_processes}" if coordinator_address else "this process"
    message.change(f"error: {_process_lost(name)}")
    atexit.register(message.cancel)  # exit handlers run in reverse: before JAX waits for the other processes


def _check_alone() -> None:
    """Raises UserError if this is one of several processes that would each train independently."""
    for name in _NUM_STARTED:
        if os.environ.get(name, "1") not in ("", "0", "1"):
            got = f"{name}={os.environ[name]}, but no cluster that JAX detects"
            fix = f"add --distributed=on and {_GIVE_ADDRESS}; or add --distributed=off to run each independently"
            raise UserError("--distributed=auto", got=got, expected="one process, or a cluster to join", fix=fix)


def _check_flags(address: str, num_processes: int, process_id: int, join_timeout: int) -> None:
    """Raises UserError for several processes without an address, or if one of the flags is out of range."""
    if join_timeout < 1:
        fix = "add --join_timeout=300"
        raise UserError("--join_timeout", got=join_timeout, expected="a number of seconds, at least 1", fix=fix)
    if not address and (num_processes, process_id) != (1, 0):
        got = f"--num_processes={num_processes} --process_id={process_id}, and no address"
        expected = "the address of process 0, or neither of these flags in a cluster that JAX detects"
        raise UserError("--coordinator_address", got=got, expected=expected, fix=_GIVE_ADDRESS)
    if not address:
        return
    if not re.fullmatch(r".+:\d+", address):
        fix = "name the host of process 0 and a free port on it"
        raise UserError("--coordinator_address", got=repr(address), expected="HOST:PORT", fix=fix)
    if not 0 <= process_id < num_processes:
        expected = f"a number from 0 to {num_processes - 1}"
        fix = "number the --num_processes processes from 0"
        raise UserError("--process_id", got=process_id, expected=expected, fix=fix)


def _no_join(address: str, num_processes: int, seconds: int) -> UserError:
    expected = f"{num_processes} processes that reach process 0 at {address}" if address else "all of the cluster's"
    return UserError(
        "joining the processes",
        got=f"missing processes after {seconds} s",
        expected=expected,
        fix="start all processes, each with its own --process_id; check the address, and that no firewall blocks it; "
        "raise --join_timeout if the hosts start slowly",
    )


def _process_lost(name: str) -> UserError:
    got = "a lost connection: this process was killed, or another one died or cannot be reached (see lines above)"
    fix = "start all processes again with the same command; a run resumes from its last checkpoint"
    return UserError(name, got=got, expected="all processes to run to the end", fix=fix)


@contextlib.contextmanager
def ending_together() -> Iterator[None]:
    """Exits with the `ExitMessage` if an error shows that another process is gone. Also works as a decorator.

    It skips the exit handlers, because JAX's would wait for the lost process.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) or not _GONE.search(str(error)) or not _has_others():
            raise
        _log.error("%s", str(error).splitlines()[0])
        sys.stdout.flush()
        os._exit(1)


def is_first_process() -> bool:
    """Whether this is process 0, which alone writes the run's shared files."""
    return jax.process_index() == 0


def on_first_process(work: Callable[[], None]) -> None:
    """Runs `work` on process 0 while the other processes wait, without a time limit.

    Process 0 runs `work` in a thread, and all processes exchange its state every second: one collective that waited for
    hours would time out.

    Raises:
      Exception: on process 0, whatever `work` raised.
      UserError: on the other processes, with the message of that exception.
    """
    if jax.process_count() == 1:
        work()
        return
    _broadcast("")  # compiles: JAX then imports modules, and imports of the thread at that time can make it fail
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(work) if is_first_process() else None
        while not (message := _broadcast(_state(future))):
            time.sleep(_POLL_SECONDS)
    if future:
        future.result()
    elif message != _DONE:
        raise UserError("process 0", got=message, expected="no error", fix="read the output of process 0")


def _state(future: concurrent.futures.Future[None] | None) -> str:
    """An empty string while the work runs; then `_DONE` or the error message."""
    if future is None or not future.done():
        return ""
    return str(future.exception() or _DONE) or "an error"


def _broadcast(text: str) -> str:
    """Returns process 0's text on all processes, truncated to `_MESSAGE_BYTES`."""
    code = np.frombuffer(text.encode()[:_MESSAGE_BYTES].ljust(_MESSAGE_BYTES, b"\0"), np.uint8)
    return bytes(np.asarray(multihost_utils.broadcast_one_to_all(code))).rstrip(b"\0").decode(errors="replace")


def of_first_process(number: int) -> int:
    """Returns process 0's `number` on all processes."""
    return number if jax.process_count() == 1 else int(multihost_utils.broadcast_one_to_all(np.int64(number)))


def agree(value: str, what: str) -> None:
    """Raises UserError unless all processes have the same value; `what` names the value."""
    values = _gather(value)
    if len(set(values)) > 1:
        raise UserError(
            what,
            got=", ".join(f"process {i}: {value}" for i, value in enumerate(values)),
            expected="the same value on all processes",
            fix="give all processes the same files, for example on a shared file system",
        )


def agree_on_command(values: Mapping[str, Any]) -> None:
    """Raises UserError with the values that differ, unless all processes have the same values."""
    commands = [json.loads(text) for text in _gather(json.dumps(values))]
    names = dict.fromkeys(name for flags in commands for name in flags)
    by_name = {name: [json.dumps(flags[name]) if name in flags else "nothing" for flags in commands] for name in names}
    differing = {name: values for name, values in by_name.items() if len(set(values)) > 1}
    if differing:
        raise UserError(
            "flags that differ between processes (process 0 first)",
            got="; ".join(f"{name} {', '.join(differing[name])}" for name in differing),
            expected="the same flags on all processes, except --process_id",
            fix="start all processes with the same command",
        )


def _has_others() -> bool:
    """Whether there are several processes. Initializes no devices unless processes were joined."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def _gather(text: str) -> list[str]:
    """The texts of all processes, in the order of their numbers."""
    if not _has_others():
        return [text]
    code = np.frombuffer(text.encode(), np.uint8)
    lengths = np.ravel(multihost_utils.process_allgather(np.int32(len(code))))
    codes = multihost_utils.process_allgather(np.pad(code, (0, int(lengths.max()) - len(code))))
    return [bytes(row[:length]).decode() for row, length in zip(np.asarray(codes), lengths, strict=True)]
