"""Makes `live-page.png`: the live page of a real `disco serve`, with answers of two real models.

`python docs/pictures/live_page.py`. Needs the group `dev` and Chromium, and takes half a minute. The local model is
SmolLM2-135M, and llama.cpp's own llama-server stands in for a company's server. Another server is not there, so that a
failure is seen.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
for part in (".", "tests/support", "tests/support/servers"):
    sys.path.insert(0, str(ROOT / part))

from chromium import find_chromium, open_page  # noqa: E402 - found by the lines above
from servers import free_port, native_llama_server  # noqa: E402

CONFIG: Final = """
port = 0
state = "off"
power = "off"
local = "smollm2-135m"

[models.chat]
preset = "fast"
base_url = "{server}"
model = "smollm2-135m"
price = [2.5, 10.0]
budget = {{ usd = 0.005, window_s = 86400 }}

[models.private]
preset = "private"

[models.careful]
preset = "server-first"
base_url = "http://127.0.0.1:{nobody}/v1"
model = "large"
price = [2.5, 10.0]
"""
QUESTIONS: Final = [
    ("chat", "Why is the sea salty? Explain it to a child, in many words.", 120),
    ("private", "Name three birds.", 40),
    ("careful", "What is a tide?", 40),
    ("chat", "Tell a story about a heron. " * 25, 120),
]
SIZE: Final = {"width": 860, "height": 965, "deviceScaleFactor": 1, "mobile": False}
LIGHT: Final = [{"name": "prefers-color-scheme", "value": "light"}]


def ask(base_url: str, model: str, words: str, tokens: int) -> None:
    """Ask for an answer, and read it to its end."""
    messages = [{"role": "user", "content": words}]
    body = {"model": model, "messages": messages, "max_tokens": tokens, "stream": True}
    where = urlsplit(base_url)
    with contextlib.closing(http.client.HTTPConnection(where.netloc, timeout=300)) as connection:
        connection.request("POST", f"{where.path}/chat/completions", json.dumps(body))
        connection.getresponse().read()


def main() -> None:
    """Make the picture."""
    chromium = find_chromium()
    if chromium is None:
        raise SystemExit("Chromium is not installed.")
    program = "import sys; from disco.cli import main; sys.exit(main())"
    with tempfile.TemporaryDirectory() as folder, native_llama_server(slots=2) as server:
        config = Path(folder) / "disco.toml"
        config.write_text(CONFIG.format(server=server.base_url, nobody=free_port()), encoding="utf-8")
        command = [sys.executable, "-c", program, "serve", "--config", str(config)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, text=True, cwd=ROOT) as serving:
            assert serving.stdout is not None
            base_url = serving.stdout.readline().strip()
            try:
                with open_page(chromium) as page:
                    page.call("Emulation.setDeviceMetricsOverride", **SIZE)
                    page.call("Emulation.setEmulatedMedia", features=LIGHT)
                    page.goto(base_url.removesuffix("v1"))
                    for question in QUESTIONS:
                        ask(base_url, *question)
                    more = (base_url, "private", "Tell a long story.", 150)
                    last = threading.Thread(target=ask, args=more)
                    last.start()
                    page.wait("document.querySelectorAll('#answers > li').length == 5")
                    page.wait("document.querySelector('#answers .busy')?.textContent == 'device writes'")
                    page.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
                    page.screenshot(HERE / "live-page.png")
                    last.join()
            finally:
                serving.send_signal(signal.SIGTERM)


if __name__ == "__main__":
    main()
