"""A headless Chromium that tests drive over the DevTools protocol, through a pipe: no WebSocket, no driver program."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Page", "find_chromium", "open_page"]

ANSWER_S = 30.0  # a command takes milliseconds; the start of the browser on a busy machine takes seconds
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find_chromium() -> str | None:
    """Path of an installed Chromium or Chrome, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((found for name in names if (found := shutil.which(name))), None)


# Chromium reads commands from descriptor 3 and writes answers to 4.
_START = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One tab. Commands are answered in order of their number; events in between are kept in `events`."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._numbers = itertools.count(1)
        self._unread = b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._from], [], [], ANSWER_S)
            assert ready, "Chromium does not answer"
            more = os.read(self._from, 1 << 16)
            assert more, "Chromium has ended"
            self._unread += more
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)

    def goto(self, url: str) -> None:
        """Load a page and wait until it is there."""
        self.call("Page.navigate", url=url)
        self.wait(f"location.href.startsWith({json.dumps(url)}) && document.readyState == 'complete'")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait(self, condition: str, *, limit_s: float = ANSWER_S) -> None:
        """Return once a JavaScript expression is true."""
        ends_at = time.monotonic() + limit_s
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < ends_at, f"never came true: {condition}"
            time.sleep(0.02)

    def resize(self, width: int, height: int, *, scale: float = 1.0, dark: bool = False) -> None:
        """Set the size of the page in CSS pixels, and the colour scheme the reader prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        """Write what is seen as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def complaints(self) -> list[str]:
        """Uncaught errors and everything the browser logged as a warning or error, so far."""
        self.evaluate("0")
        found = []
        for event in self.events:
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(event["params"]["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] != "info":
                found.append(event["params"]["entry"]["text"])
        return found

    def hosts(self) -> set[str]:
        """Where the page has sent requests to, as `scheme://host:port`."""
        urls = [
            e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"
        ]
        return {"/".join(url.split("/")[:3]) for url in urls if not url.startswith("data:")}


def _pipe() -> tuple[int, int]:
    """A pipe whose descriptors are neither 3 nor 4."""
    low = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)
    for end in low:
        os.close(end)
    return high[0], high[1]


@contextlib.contextmanager
def open_page(chromium: str) -> Iterator[Page]:
    """A tab of a browser of its own, with a fresh profile; both are gone afterwards."""
    (commands, to_browser), (from_browser, answers) = _pipe(), _pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _START,
                str(commands),
                str(answers),
                chromium,
                *FLAGS,
                f"--user-data-dir={profile}",
            ],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        try:
            yield Page(to_browser, from_browser)
        finally:
            os.close(to_browser)  # at the end of its commands it ends, too
            os.close(from_browser)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
