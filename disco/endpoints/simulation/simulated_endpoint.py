"""A simulated endpoint: plays `simulated_script` on the event loop's clock.

The endpoint keeps the contract of `disco.endpoints.contract` in full, so sessions, clients and demonstrations run on
it without a model or a network. On a virtual clock (trio's autojump clock) no real time passes.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from disco.candidate import PromptSize
from disco.endpoints.contract import Capabilities, Endpoint
from disco.endpoints.simulation.simulated_attempt import SimulatedAttempt, Slots
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.endpoints.simulation.simulated_text import prompt_pieces
from disco.request import Prefix, Request

__all__ = ["SimulatedAttempt", "SimulatedEndpoint"]


class SimulatedEndpoint(Endpoint):
    """A device or a server that exists only as a profile.

    A device does one attempt at a time, first come, first served. It remembers the prompt and the answer of its last
    attempt: the beginning that a new prompt shares with them needs no prefill. A server does any number of attempts
    at once.

    Args:
        name: unique within one client.
        profile: the endpoint's numbers; may be replaced at any time, for attempts opened from then on.
        place: "device" or "server".
        seed: of the randomness in time; the text depends on `profile.seed`.
    """

    # Mutable: profile, the number of attempts opened, the slots.

    def __init__(
        self,
        name: str = "simulated",
        profile: SimulatedProfile | None = None,
        *,
        place: Literal["device", "server"] = "server",
        seed: int = 0,
    ) -> None:
        self.name = name
        self.place = place
        self.profile = profile if profile is not None else SimulatedProfile()
        self._seed = seed
        self._opened = 0
        self._slots = Slots(one_at_a_time=place == "device")

    def capabilities(self, model: str | None = None) -> Capabilities:
        del model  # every model is served
        return Capabilities(
            continues=self.profile.continues,
            context_tokens=self.profile.context_tokens,
            features=self.profile.features,
            vocabulary=self.profile.vocabulary,
            parks=self.place == "device",
            follows=self.place == "device",
            limits=True,
            pauses=self.place == "device",
            announces=self.place == "device",
            waiting=self.busy if self.place == "device" else None,
            logp=self.profile.mean_logp is not None,
            progress=self.place == "device",
        )

    def open(
        self,
        request: Request,
        prefix: Prefix = Prefix(),  # noqa: B008 - frozen
        *,
        wants: frozenset[str] = frozenset(),
    ) -> SimulatedAttempt:
        self._opened += 1
        # One generator per attempt, so that an attempt's draws do not depend on how others are interleaved.
        rng = np.random.default_rng([self._seed, self._opened])
        return SimulatedAttempt(self, self._slots, request, prefix, rng, wants)

    async def prompt_size(self, request: Request, within_s: float) -> PromptSize | None:
        del within_s
        if self.place == "server" or self.busy:
            return None
        pieces = prompt_pieces(request.messages, Prefix())
        return PromptSize(len(pieces), self._slots.cached(pieces))

    async def aclose(self) -> None:
        for attempt in (*self._slots.present, *self._slots.following, *self._slots.aside):
            await attempt.aclose()

    @property
    def busy(self) -> int:
        """Return the number of attempts that work or wait for the device."""
        return len(self._slots.present)
