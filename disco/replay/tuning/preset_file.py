"""The settings that tuning chooses, and the preset file that holds them."""

from __future__ import annotations

import os
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disco.dispatch import Preset, load_preset
from disco.dispatch.policies.plugged_policy import policy_spec
from disco.errors import ConfigurationError
from disco.profiles.profile_toml import dump_toml
from disco.replay.sweeps.sweep import is_budgetless
from disco.replay.workload.scenario import Arm

__all__ = ["PresetChoice", "write_preset"]


@dataclass(frozen=True, slots=True)
class PresetChoice:
    """Settings that a preset holds.

    Attributes:
        arm: policy, budget, α and whether answers may move.
        exchange_rate: λ, USD per 10⁶ FLOPs; decides which side is more expensive.
        pace_tps: the reader's pace, tokens/s; None: text is passed on when it arrives.
    """

    arm: Arm
    exchange_rate: float
    pace_tps: float | None

    @property
    def label(self) -> str:
        """The policy and its budget, for tables and messages."""
        if is_budgetless(self.arm.policy):
            return self.arm.policy
        return f"{self.arm.policy} at budget {self.arm.budget:g}"

    def values(self, *, summary: str = "") -> dict[str, dict[str, Any] | str]:
        """Return the settings in the form that `load_preset` takes."""
        policy, options = policy_spec(self.arm.policy)
        dispatch: dict[str, Any] = {"policy": policy, **({"options": options} if options else {})}
        if not is_budgetless(self.arm.policy):
            # A trace is not precise enough for more digits; the tables print two.
            dispatch |= {"budget": round(self.arm.budget, 4), "tail": round(self.arm.tail, 4)}
        playback: dict[str, Any] = (
            {"pace_tps": "off", "max_hold_s": 0.0}
            if self.pace_tps is None
            else {"pace_tps": self.pace_tps, "max_hold_s": 0.3}
        )
        return {
            "summary": summary,
            "dispatch": dispatch,
            "cost": {"exchange_rate": self.exchange_rate},
            "migration": {"enabled": self.arm.migrate, "order": self.arm.order},
            "playback": playback,
        }


def write_preset(choice: PresetChoice, path: str | os.PathLike[str], *, summary: str, comment: str) -> Preset:
    """Write a preset that `AsyncDisco(preset=Path(path))` loads.

    Args:
        choice: the settings.
        path: a `.toml` file; an existing file is replaced.
        summary: one line for listings.
        comment: put at the top, wrapped.

    Returns:
        The preset that the file loads as.

    Raises:
        ConfigurationError: the path does not end in ".toml", or the file cannot be written.
    """
    target = Path(path)
    if target.suffix != ".toml":
        raise ConfigurationError(
            f"the preset {target.name} must be a .toml file; write {target.name}.toml instead"
        )
    header = "\n".join("\n".join(textwrap.wrap(part, 98)) for part in comment.splitlines())
    text = dump_toml(choice.values(summary=summary), comment=header)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        preset = load_preset(draft)
        draft.replace(target)
    except OSError as error:
        raise ConfigurationError(
            f"the preset {target} cannot be written: {error.strerror or error}; name a path that can be written"
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    return preset.model_copy(update={"name": target.stem})
