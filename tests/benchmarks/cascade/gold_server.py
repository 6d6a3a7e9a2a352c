"""A simulated top tier in a process of its own: it answers from the gold labels, and is wrong in a stated share.

`gold_server.py TEXTS LABELS ACCURACY DELAY_S` prints its address once it serves, and ends when its standard input does.
It writes nothing that a model wrote; every table that uses it says so.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from papers.measure.labelled_texts import read_texts

NAME = "gold (simulated)"


class Gold(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    labels: tuple[str, ...] = ()
    answers: dict[str, int]  # by the letters of the text
    accuracy, delay_s = 1.0, 0.0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        content = body["messages"][-1]["content"]
        text = content.rpartition("Review: ")[2].rpartition("\n")[0]
        label = self.answers[text]
        wrong = zlib.crc32(text.encode()) / 2**32 >= self.accuracy  # the same one every time
        if wrong:
            label = (label + 1) % len(self.labels)
        time.sleep(self.delay_s)
        usage = {"prompt_tokens": len(content.split()) * 4 // 3, "completion_tokens": 1}
        usage["total_tokens"] = sum(usage.values())
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._piece([{"index": 0, "delta": {"content": f" {self.labels[label]}"}, "finish_reason": None}])
        self._piece([{"index": 0, "delta": {}, "finish_reason": "stop"}])
        self._piece([], usage=usage)
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _piece(self, choices: list[Any], **more: Any) -> None:
        made = {"id": "gold", "object": "chat.completion.chunk", "created": 1, "model": NAME}
        self._chunk(b"data: " + json.dumps({**made, "choices": choices, **more}).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    texts, labels, accuracy, delay_s = sys.argv[1:]
    Gold.labels = tuple(labels.split(","))
    Gold.answers = {
        " ".join(one.text.split()): one.label for one in read_texts(texts, labels=len(Gold.labels))
    }
    Gold.accuracy, Gold.delay_s = float(accuracy), float(delay_s)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Gold)
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
    server.serve_forever()
