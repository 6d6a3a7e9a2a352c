"""What the host of a split model says of it: the layer server, the link and the device, as measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from disco.speculate.chunks import PassTimes, SplitPath
from disco.speculate.layer_facts import LayerFacts

__all__ = ["SplitFacts", "drafter_name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFacts:
    """See the module.

    Attributes:
        server: what the layer server said when the link was made.
        path: what is known of the device, the link and the cloud by now.
        batch_tokens: tokens that the device sends at once.
        has_adapter: whether the device's file can draft.
        ahead_tokens, ahead_used: see `SplitDrafter`.
    """

    server: LayerFacts
    path: SplitPath
    batch_tokens: int
    has_adapter: bool
    ahead_tokens: int = 0
    ahead_used: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON values."""
        path = {one.name: getattr(self.path, one.name) for one in fields(self.path)}
        path |= {name: _curve_fields(path[name]) for name in ("device_s", "cloud_s")}
        return {
            "server": self.server.to_json(),
            "path": path,
            "batch_tokens": self.batch_tokens,
            "has_adapter": self.has_adapter,
            "ahead_tokens": self.ahead_tokens,
            "ahead_used": self.ahead_used,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the facts that `to_json` made this of."""
        path = dict(content["path"])
        path |= {name: PassTimes(**path[name]) for name in ("device_s", "cloud_s")}
        server = LayerFacts.from_json(content["server"])
        return cls(**{**content, "server": server, "path": SplitPath(**path)})


def drafter_name(name: str) -> str:
    """Return the name by which the device's part of a split endpoint is charged for drafts."""
    return f"{name}-drafts"


def _curve_fields(curve: PassTimes) -> dict[str, Any]:
    return {"points": curve.points, "pass_rows": curve.pass_rows}
