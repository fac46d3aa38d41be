"""A headless Chromium, driven over its DevTools protocol: what a page does, complains of, and asks the network for."""

import contextlib
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import websocket

BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_SECONDS = 60
_MOUSE = "--blink-settings=" + ",".join(
    ("primaryHoverType=2", "availableHoverTypes=2", "primaryPointerType=4", "availablePointerTypes=4")
)


class Page:
    """A tab.

    Attributes:
      problems: console errors, exceptions, and requests for anything but the page itself and data in it.
    """

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, timeout=_SECONDS, suppress_origin=True)
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        self._loaded = False
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Does what a method of the protocol does, and takes note of events meanwhile."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"].get("exception", params)))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")) or (self._loaded and url.startswith("file:")):
                self.problems.append(f"asked for {url}")

    def open(self, path: Path, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Opens a file on a screen of that size; below a width of 600 it is a phone's."""
        self._loaded = False
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self.call("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + _SECONDS
        while not self._loaded and time.monotonic() < end:
            self.evaluate("0")
            time.sleep(0.02)
        assert self._loaded, f"{path} does not load"

    def evaluate(self, script: str) -> Any:
        """The value of an expression of JavaScript, which may be a promise."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def box(self, selector: str) -> dict[str, float]:
        """Where an element is on the screen, after it has been scrolled into view."""
        return self.evaluate(
            f"""(() => {{ const element = document.querySelector({json.dumps(selector)});
            element.scrollIntoView({{block: "center", behavior: "instant"}});
            const {{left, top, width, height}} = element.getBoundingClientRect();
            return {{left, top, width, height}}; }})()"""
        )

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Moves, presses or releases the mouse: "mouseMoved", "mousePressed", "mouseReleased"."""
        button = "none" if kind == "mouseMoved" else "left"
        buttons = 0 if kind == "mouseReleased" else 1
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=buttons, clickCount=1)

    def click(self, selector: str) -> None:
        """Clicks into the middle of an element."""
        box = self.box(selector)
        x, y = box["left"] + box["width"] / 2, box["top"] + box["height"] / 2
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.mouse("mousePressed", x, y)
        self.mouse("mouseReleased", x, y)

    def hover(self, selector: str, x: float = 0.5, y: float = 0.5) -> None:
        """Points at a place in an element."""
        box = self.box(selector)
        place = {"x": box["left"] + x * box["width"], "y": box["top"] + y * box["height"]}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **place)

    def drag(self, selector: str, start: float, end: float) -> None:
        """Drags from one part of an element's width to another."""
        box = self.box(selector)
        y = box["top"] + box["height"] / 3
        x1, x2 = (box["left"] + part * box["width"] for part in (start, end))
        self.mouse("mousePressed", x1, y)
        for step in range(1, 5):
            self.mouse("mouseMoved", x1 + (x2 - x1) * step / 4, y)
        self.mouse("mouseReleased", x2, y)

    def press(self, key: str, **more: Any) -> None:
        """Presses and releases a key."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            down = text if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=more.get("code", key), **down, **more)


@contextlib.contextmanager
def browser(has_mouse: bool = False) -> Iterator[Page]:
    """A tab of a browser of its own, which knows no network; for media queries it has a mouse, or no pointer."""
    assert BINARY, "no Chromium"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
        flags += ["--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update"]
        flags += [
            *([_MOUSE] if has_mouse else []),
            f"--user-data-dir={home}",
            "--remote-debugging-port=0",
            "about:blank",
        ]
        process = subprocess.Popen([BINARY, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield Page(_address(Path(home) / "DevToolsActivePort"))
        finally:
            process.terminate()
            process.wait(_SECONDS)


def _address(file: Path) -> str:
    """Where the tab listens; the browser writes its own place to a file once it is there."""
    from urllib.request import urlopen

    end = time.monotonic() + _SECONDS
    while not (file.exists() and file.read_text().strip()):
        assert time.monotonic() < end, "Chromium does not start"
        time.sleep(0.05)
    port = file.read_text().split()[0]
    with urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
        tabs = json.load(answer)
    return next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
