"""`GET /v1/disco/layers`: which layers a server has, what a pass costs it, and its load.

{"model": "smollm2-135m", "fingerprint": "5a…", "layers": 2, "total_layers": 30, "hidden": 576, "slots": 8,
 "compute_s": [[1, 0.009], [17, 0.044]], "load": 3.2, …}

With `?session=…` the load is that of other devices only.
"""

from __future__ import annotations

import json
from dataclasses import replace
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from disco.endpoints.split.wire import LAYERS
from disco.server.http_reply import Reply
from disco.server.layers.layer_host import LayerHost

__all__ = ["LayerFactsRoute"]


class LayerFactsRoute:
    """The ASGI application of the facts.

    Args:
        engine: has the layers.
        most_frame_bytes: of the longest message that is read.
    """

    def __init__(self, engine: LayerHost, most_frame_bytes: int) -> None:
        self._engine = engine
        self._most_frame_bytes = most_frame_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        session = parse_qs(scope["query_string"].decode("latin-1")).get("session", [None])[0]
        facts = replace(self._engine.facts(session), most_frame_bytes=self._most_frame_bytes)
        await Reply(send, LAYERS).whole(200, json.dumps(facts.to_json()).encode())
