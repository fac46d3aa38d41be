"""Ends a command at SIGTERM or Ctrl-C, even during a long call of a compiler, which Python cannot interrupt."""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GRACE_SECONDS = 1.0


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Makes the signals end the process: in Python code by an exception, otherwise after a second, by a thread.

    The exit status is 128 plus the number of the signal, as in shells. Only for the main thread.
    """
    # Python runs its handlers in the main thread between instructions, but writes to this socket at once.
    received, sent = socket.socketpair()
    sent.setblocking(False)
    is_raised = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        is_raised.set()
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    before_fd = signal.set_wakeup_fd(sent.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(received, is_raised), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before_fd)
        for number, handler in before.items():
            signal.signal(number, handler)
        sent.close()
        watcher.join()
        received.close()


def _watch(received: socket.socket, is_raised: threading.Event) -> None:
    """Ends the process after the first signal unless the main thread raises its exception, or after the second one."""
    is_second = False
    while data := received.recv(1):
        number = data[0]
        if number not in _SIGNALS:
            continue
        _log.warning("got %s: stopping", signal.Signals(number).name)
        if is_second or not is_raised.wait(_GRACE_SECONDS):
            _end_children()
            os._exit(128 + number)
        is_second = True


def _end_children() -> None:
    """Sends SIGTERM to the processes that this one has started, such as those of a compiler."""
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in path.read_text().split():
                os.kill(int(child), signal.SIGTERM)
