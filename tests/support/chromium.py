"""A headless Chromium that tests drive over the DevTools protocol, through a pipe: no WebSocket, no driver program."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Page", "find_chromium", "open_page"]

ANSWER_S = 30.0  # a command takes milliseconds; the start of the browser on a busy machine takes seconds
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--remote-debugging-pipe"),
)


def find_chromium() -> str | None:
    """Path of an installed Chromium or Chrome, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((found for name in names if (found := shutil.which(name))), None)


class Page:
    """One tab. Commands are answered in order of their number; events in between are kept in `events`."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._numbers = itertools.count(1)
        self._unread = b""
        self._session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params, **self._session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, answer["error"]
        return answer["result"]

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

    def screenshot(self, path: Path) -> None:
        """Write what is seen as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def complaints(self) -> list[str]:
        """Uncaught errors and everything the browser logged as a warning or error, so far."""
        self.evaluate("0")
        said = [(event["method"], event["params"]) for event in self.events]
        thrown = [json.dumps(p["exceptionDetails"]) for m, p in said if m == "Runtime.exceptionThrown"]
        logged = [p["entry"] for m, p in said if m == "Log.entryAdded"]
        return [*thrown, *(entry["text"] for entry in logged if entry["level"] != "info")]

    def hosts(self) -> set[str]:
        """Where the page has sent requests to, as `scheme://host:port`."""
        sent = [e["params"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        urls = [params["request"]["url"] for params in sent]
        return {"/".join(url.split("/")[:3]) for url in urls if not url.startswith("data:")}


@contextlib.contextmanager
def open_page(chromium: str) -> Iterator[Page]:
    """A tab of a browser of its own, with a fresh profile; both are gone afterwards."""
    (commands, to_browser), (from_browser, answers) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        command = [
            *("/bin/bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "-"),
            *(chromium, *FLAGS, f"--user-data-dir={profile}"),
        ]
        silent = subprocess.DEVNULL
        with subprocess.Popen(command, pass_fds=(commands, answers), stdout=silent, stderr=silent) as process:
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
