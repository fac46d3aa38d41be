"""Several processes: joining them, agreeing, and ending together."""

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
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from bertjax.config import choice
from bertjax.errors import UserError

_log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 1
_MESSAGE_BYTES = 1024
_DONE = "done"
# How long a start waits for all, how soon a silent process counts as dead, and how long one that is through waits for
# the others: each less than a minute.
_START_SECONDS, _SILENT_SECONDS, _END_SECONDS = 40, 30, 30
# What collectives and JAX's coordination service say when another process is gone.
_GONE = re.compile("Gloo|NCCL|[Cc]oordination|UNAVAILABLE|DEADLINE_EXCEEDED")
# How many processes were started together, by launchers that JAX may not know.
_STARTED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
# Keeps the last line that it is given, and says it when who gave it is gone, unless that line is empty.
_SAYS_LAST_WORDS = """trap '' HUP INT TERM
while read -r line; do words=$line; done
[ -z "$words" ] || printf '%s\\n' "$words" >&2"""


_GIVE_ADDRESS = "give --coordinator_address=HOST:PORT --num_processes=N --process_id=I to each process"


class LastWords:
    """What is to be said should this process be ended from outside, or by C++, where Python does not get to say it.

    JAX ends a process by abort() when another one is gone. So a shell waits beside this one.
    """

    def __init__(self, words: object) -> None:
        """Args: the first of them."""
        self._shell = subprocess.Popen(["sh", "-c", _SAYS_LAST_WORDS], stdin=subprocess.PIPE, text=True)
        self.change(words)

    def change(self, words: object) -> None:
        """Puts other words, of one line, in place of those before."""
        assert self._shell.stdin
        self._shell.stdin.write(f"{words}\n")
        self._shell.stdin.flush()

    def withdraw(self) -> None:
        """Leaves nothing to be said."""
        self._shell.communicate("\n")


def initialize(mode: str, coordinator_address: str, num_processes: int, process_id: int) -> None:
    """Joins the processes of a run; before anything else touches a device.

    If one of them dies or cannot be reached, the others end within a minute, with a message and a status other than 0.

    Args:
      mode: "off"; "on"; or "auto", where a cluster that JAX knows (TPU pods, SLURM, Open MPI up to 4) is joined if
        there is one.
      coordinator_address, num_processes, process_id: for "on" outside such a cluster.
    Raises:
      UserError: flags that do not go together, or several processes that were started together and cannot be joined.
    """
    choice(mode, ("auto", "on", "off"), "--distributed")
    if mode == "off":
        return
    if coordinator_address:
        _check_address(coordinator_address, num_processes, process_id)
    last_words = LastWords(f"error: {_nobody_came(coordinator_address, num_processes)}")
    join = functools.partial(
        jax.distributed.initialize,
        initialization_timeout=_START_SECONDS,
        heartbeat_timeout_seconds=_SILENT_SECONDS,
        shutdown_timeout_seconds=_END_SECONDS,
    )
    try:
        join(*((coordinator_address, num_processes, process_id) if coordinator_address else ()))
    except ValueError as error:
        last_words.withdraw()
        if mode == "on":
            raise UserError(
                "--distributed=on",
                got="no cluster that JAX knows",
                expected="a TPU pod, SLURM or Open MPI up to version 4, or the address of the first process",
                fix=_GIVE_ADDRESS,
            ) from error
        _check_alone()
        return
    except jax.errors.JaxRuntimeError as error:
        last_words.withdraw()
        expected, fix = "process 0 to listen at its address", "choose a free port on the machine of process 0"
        raise UserError("--coordinator_address", got=str(error), expected=expected, fix=fix) from error
    name = f"process {process_id} of {num_processes}" if coordinator_address else "this process"
    last_words.change(f"error: {_another_is_gone(name)}")
    atexit.register(last_words.withdraw)  # before JAX waits for the others to end, too


def _check_alone() -> None:
    """Raises UserError if this is one of several processes, each of which would train for itself."""
    for name in _STARTED:
        if os.environ.get(name, "1") not in ("", "0", "1"):
            raise UserError(
                "--distributed=auto",
                got=f"{name}={os.environ[name]}, and no cluster that JAX knows",
                expected="one process, or a cluster to join",
                fix=f"add --distributed=on and {_GIVE_ADDRESS}; or --distributed=off, if each is to work for itself",
            )


def _check_address(address: str, num_processes: int, process_id: int) -> None:
    """Raises UserError for flags that do not go together."""
    if not re.fullmatch(r".+:\d+", address):
        fix = "name the host of process 0 and a free port on it"
        raise UserError("--coordinator_address", got=repr(address), expected="HOST:PORT", fix=fix)
    if not 0 <= process_id < num_processes:
        expected, fix = f"a number from 0 to {num_processes - 1}", "number the processes of --num_processes from 0 on"
        raise UserError("--process_id", got=process_id, expected=expected, fix=fix)


def _nobody_came(address: str, num_processes: int) -> UserError:
    return UserError(
        "joining the other processes",
        got=f"not all of them within {_START_SECONDS} s",
        expected=f"{num_processes} processes that reach process 0 at {address}" if address else "all of the cluster's",
        fix="start all at about the same time, each with a --process_id of its own; see that the address is right, and "
        "that no firewall is between them",
    )


def _another_is_gone(name: str) -> UserError:
    return UserError(
        name,
        got="cut off: it was killed, or another process has died or cannot be reached (lines above may say more)",
        expected="all processes to go on together",
        fix="start all of them again with the same command: a run goes on from its last checkpoint",
    )


@contextlib.contextmanager
def ending_together() -> Iterator[None]:
    """Ends this process, with its last words, if something fails because another one is gone; decorates functions, too.

    No exit handler runs, since JAX's would wait for the one that is gone.
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


def of_first_process(number: int) -> int:
    """Process 0's number, on all processes."""
    return number if jax.process_count() == 1 else int(multihost_utils.broadcast_one_to_all(np.int64(number)))


def agree(value: str, what: str) -> None:
    """Raises UserError unless all processes have the same value."""
    values = _gather(value)
    if len(set(values)) > 1:
        raise UserError(
            what,
            got=", ".join(f"process {i}: {value}" for i, value in enumerate(values)),
            expected="the same on all processes",
            fix="let all processes see the same files, through a shared file system",
        )


def agree_on_command(values: Mapping[str, Any]) -> None:
    """Raises UserError, which names the values that differ, unless all processes were given the same."""
    given = [json.loads(text) for text in _gather(json.dumps(values))]
    names = dict.fromkeys(name for each in given for name in each)
    told = {name: [json.dumps(each[name]) if name in each else "nothing" for each in given] for name in names}
    differing = {name: values for name, values in told.items() if len(set(values)) > 1}
    if differing:
        raise UserError(
            "the processes",
            got="; ".join(f"{name} {', '.join(differing[name])}" for name in differing),
            expected="the same flags for all of them (here are those of process 0 first), but for --process_id",
            fix="start all of them with the same command",
        )


def _has_others() -> bool:
    """Whether there are several processes; looks for no devices unless some were joined."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def _gather(text: str) -> list[str]:
    """The texts of all processes, by number."""
    if not _has_others():
        return [text]
    code = np.frombuffer(text.encode(), np.uint8)
    lengths = np.ravel(multihost_utils.process_allgather(np.int32(len(code))))
    codes = multihost_utils.process_allgather(np.pad(code, (0, int(lengths.max()) - len(code))))
    return [bytes(row[:length]).decode() for row, length in zip(np.asarray(codes), lengths, strict=True)]
