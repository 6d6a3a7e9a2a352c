"""`disco demo --cascade`: three real tiers answer; what a tier is unsure of goes up to the next.

Every score, threshold and verdict that is shown comes from the route record of a live answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

import anyio.to_thread
import httpx2

from disco.cli.console import Screen
from disco.cli.demonstration.comparison import Spent, spent
from disco.cli.demonstration.demo_runtime import server_class
from disco.cli.demonstration.demo_server import DemoServer
from disco.cli.demonstration.scene import (
    LOCAL,
    MAINS,
    PRICE,
    SERVER_PROFILE,
    DemoDevice,
    Keep,
    Remote,
    start_remote,
)
from disco.client import AsyncDisco, Tier
from disco.client.endpoint_catalog.runtimes import Runtime
from disco.dispatch.presets import (
    CascadeSection,
    CostSection,
    DispatchSection,
    MigrationSection,
    PlaybackSection,
    Preset,
)
from disco.endpoints.continuation import Continuation
from disco.playback import last_sentence_end
from disco.profiles import load_server
from disco.session.records.route_record import JudgementRecord, RouteRecord

__all__ = ["QuestionScene", "Totals", "ask_all", "run_cascade"]

BETA = 0.3
TIERS = ("device", "middle", "server")


@dataclass(frozen=True)
class QuestionScene:
    """Questions of one task, so that their scores are compared with each other.

    Attributes:
        title, story: the text for the viewer.
        task: its name.
        instructions: said to the model before each question.
        questions: asked in this order, which is that of the alphabet: scores are compared with earlier ones, so that an
            order from easy to hard would send up more answers.
        examples: questions with their answers, shown to the model before.
        classes: the answers to choose between; empty: a free answer.
        streams: whether the answers are streamed under "guard"; else each one is judged as a whole.
        max_tokens: limit of an answer; an answer that reaches it is not judged.
    """

    title: str
    story: str
    task: str
    instructions: str
    questions: tuple[str, ...]
    examples: tuple[tuple[str, str], ...] = ()
    classes: tuple[str, ...] = ()
    streams: bool = False
    max_tokens: int = 160


SCENES = (
    QuestionScene(
        "Short questions: each answer is judged when it is complete",
        "The score of an answer rises with the probability of its text to the model that wrote it. The threshold is "
        f"the {BETA:g}-quantile of the earlier scores of the same tier. A score in the lowest {BETA:.0%} goes up.",
        "facts",
        "Answer with one word or a short phrase.",
        (
            "How many legs does a spider have?",
            "How many minutes are in three hours?",
            "In which ocean do the Azores lie?",
            "What do bees make?",
            "What gas do plants breathe in?",
            "What instrument measures air pressure?",
            "What is the capital of France?",
            "What is the opposite of north?",
            "Which metal is liquid at room temperature?",
            "Which planet is the largest?",
        ),
    ),
    QuestionScene(
        "Classes: the model only chooses",
        "The score is the probability of the chosen class. What the model prefers before it has read anything (the "
        "label prior) is taken off first.",
        "remarks",
        "Is the visitor's remark positive or negative? Answer with one word.",
        (
            "I would come back for the charts alone.",
            "It is a museum.",
            "My children did not want to leave.",
            "Nobody could tell us where the exit was.",
            "Not as dull as I had feared.",
            "The best afternoon of our holiday.",
            "The lamp was broken again.",
            "The tea was cold and so was the guide.",
        ),
        examples=(
            ("A lovely morning, thank you.", "positive"),
            ("We waited an hour and saw nothing.", "negative"),
            ("Cold, dark, and far too expensive.", "negative"),
            ("The guide knew every ship by name.", "positive"),
        ),
        classes=("positive", "negative"),
    ),
    QuestionScene(
        "Streams: the text leaves sentence by sentence, behind the judge",
        "Each line is a sentence, with the time at which the reader got it. Where the score is too low, the next tier "
        "goes on behind the last sentence that was shown. Nothing that was shown is taken back.",
        "stories",
        "You are the guide of a small museum by the sea. Answer in three plain sentences.",
        (
            "How does a compass work?",
            "What is a lighthouse for?",
            "What is a tide?",
            "What is an anchor for?",
            "What is fog?",
            "Who looks after the lamp?",
            "Why are there waves?",
            "Why do ships carry flags?",
            "Why is the sea salty?",
            "Why is there a ship in a bottle?",
        ),
        streams=True,
    ),
)


class Totals:
    """What all answers so far have come to. Mutable: all of it.

    Attributes:
        bytes: on the wire, sent and received.
        spent: money to servers, and the device's energy.
        attempts, judged, risen: by tier, how many answers it wrote, were judged, and went up.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.spent = Spent(0.0, 0.0)
        self.judged = dict.fromkeys(TIERS, 0)
        self.risen = dict.fromkeys(TIERS, 0)
        self.attempts = dict.fromkeys(TIERS, 0)

    def add(self, record: RouteRecord) -> None:
        """Add one answer: its bytes on the wire in both directions, what it took, its verdicts."""
        self.bytes += sum(a.bytes_up + a.bytes_down for a in record.attempts)
        took = spent(record, MAINS)
        self.spent = Spent(self.spent.ct + took.ct, self.spent.joules + took.joules)
        for attempt in record.attempts:
            self.attempts[attempt.endpoint] += 1
        for judgement in record.judgements:
            self.judged[judgement.endpoint] += judgement.score is not None
            self.risen[judgement.endpoint] += judgement.outcome == "handed_up"


async def run_cascade(screen: Screen, keep: Keep | None = None, *, runtime: Runtime = "auto") -> int:
    """Play every scene; return 0 if every answer is complete and some, but not all, went up."""
    screen.line("disco: the smallest model answers, and what it is unsure of goes up", style="bold")
    totals = Totals()
    records: list[RouteRecord] = []
    async with AsyncExitStack() as stack:
        device = DemoDevice(runtime=runtime)
        stack.push_async_callback(device.aclose)
        middle = await stack.enter_async_context(_middle_tier(screen, runtime))
        remote = await stack.enter_async_context(start_remote(screen, runtime=runtime))
        if remote.shaper is not None:
            remote.shaper.delay = float(load_server(SERVER_PROFILE).ttft().quantile(0.5))
        screen.line(_about_the_tiers(remote), style="dim")
        screen.legend(TIERS)
        client = await stack.enter_async_context(_client(device, middle, remote))
        with screen.step("Loading the local model"):
            await client.warm_up(remote.model)
        for number, scene in enumerate(SCENES, 1):
            screen.line(f"\n{number}. {scene.title}", style="bold")
            screen.line(scene.story, style="dim")
            asked = await ask_all(scene, screen, client, remote.model, totals)
            records += asked
            if keep is not None:
                for record in asked:
                    keep(record)
    _summary(screen, totals)
    complete = all(r.finish_reason is not None and r.seamless for r in records)
    if not complete or not 0 < totals.risen["device"] < totals.judged["device"]:
        screen.line("Not every scene went as planned on this machine; see the notes above.", style="bold red")
        return 1
    return 0


@asynccontextmanager
async def _middle_tier(screen: Screen, runtime: Runtime) -> AsyncIterator[DemoServer]:
    with screen.step("Starting the second tier, a server in its own process") as progress:
        server = server_class(runtime)(
            LOCAL, context_tokens=1024, threads=1, logprobs=True, progress=progress
        )
        await anyio.to_thread.run_sync(server.start)
    try:
        yield server
    finally:
        server.stop()


def _client(device: DemoDevice, middle: DemoServer, remote: Remote) -> AsyncDisco:
    tier = Tier(
        base_url=middle.base_url,
        model=middle.model_name,
        reach="own",
        price=(0.0, 0.0),
        name="middle",
        continuation=Continuation(method="completions", template=str(middle.model)),
        logp=True,
    )
    preset = Preset(
        name="cascade",
        dispatch=DispatchSection(policy="cascade"),
        cascade=CascadeSection(beta=BETA),
        cost=CostSection(exchange_rate=MAINS),
        migration=MigrationSection(enabled=False),
        playback=PlaybackSection(pace_tps=12.0),
    )
    # The demo's server closes a connection after 5 idle seconds. The proxy holds a request back for a moment, in which
    # that can happen; so older connections are not used again.
    http = httpx2.AsyncClient(limits=httpx2.Limits(keepalive_expiry=2.0), follow_redirects=True)
    return AsyncDisco(
        local=device.endpoint,
        tiers=[tier],
        http_client=http,
        preset=preset,
        base_url=remote.base_url,
        api_key=remote.api_key,
        continuation=remote.continuation,
        server_profile=SERVER_PROFILE,
        price=PRICE if remote.process is not None else None,
    )


def _about_the_tiers(remote: Remote) -> str:
    reach = "device: in this process. middle: a server that stands for a machine of yours. server: behind an API. "
    if remote.process is not None:
        return f"{reach}All three run the same {LOCAL}: going up changes the writer here, not the quality."
    return f"{reach}device and middle run the same {LOCAL}: only the step to your server changes the quality."


async def ask_all(
    scene: QuestionScene, screen: Screen, client: AsyncDisco, model: str, totals: Totals
) -> list[RouteRecord]:
    """Ask the scene's questions; print each answer and what its record says. `model`: the server's."""
    records = []
    for question in scene.questions:
        record = await _ask(scene, question, screen, client, model)
        totals.add(record)
        records.append(record)
        _explain(screen, record, totals)
    return records


async def _ask(
    scene: QuestionScene, question: str, screen: Screen, client: AsyncDisco, model: str
) -> RouteRecord:
    """Ask one question and print its answer, each part in the colour of the tier that wrote it."""
    options: dict[str, object] = {"task": scene.task}
    if scene.classes:
        options["classes"] = list(scene.classes)
    messages = [{"role": "system", "content": scene.instructions}]
    for asked_before, answered in scene.examples:
        messages.append({"role": "user", "content": asked_before})
        messages.append({"role": "assistant", "content": answered})
    messages.append({"role": "user", "content": question})
    asked: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "max_tokens": scene.max_tokens,
        "temperature": 0.0,
        "extra_body": {"disco": options},
    }
    screen.line(f"\n{question}")
    if scene.streams:
        return await _show_sentences(screen, client, asked)
    answer = await client.chat.completions.create(**asked)
    text = (answer.choices[0].message.content or "").strip()
    if text:
        writer = answer.route.segments[-1].endpoint
        screen.stream(f"[{writer}] {text}", writer)
        screen.flush_line()
    else:
        screen.line("(an empty answer)", style="dim")
    record: RouteRecord = answer.route
    return record


async def _show_sentences(screen: Screen, client: AsyncDisco, asked: dict[str, Any]) -> RouteRecord:
    """Print a streamed answer, each sentence on a line of its own, with the seconds since the request."""
    started_at = monotonic()
    stream: Any = await client.chat.completions.create(**asked, stream=True)
    line, writer = "", ""
    async for chunk in stream:
        text = (chunk.choices[0].delta.content or "") if chunk.choices else ""
        end = last_sentence_end(line + text) - len(line) if line else -1
        if end >= 0:  # the sentence on this line is complete
            screen.stream(text[:end], writer)
            screen.flush_line()
            text, line = text[end:], ""
        if not line:
            text = text.lstrip()
        if not text:
            continue
        if not line or stream.writer != writer:
            writer = stream.writer or "server"
            screen.flush_line()
            screen.stream(f"{monotonic() - started_at:5.1f} s [{writer}] ", writer)
        screen.stream(text, writer)
        line += text
    screen.flush_line()
    record: RouteRecord = stream.route
    return record


def _explain(screen: Screen, record: RouteRecord, totals: Totals) -> None:
    """Print what the route record says of each tier that answered, and the totals so far."""
    judged = {j.attempt: j for j in record.judgements}
    top = max(record.endpoints, key=lambda endpoint: endpoint.rank).name
    for number, attempt in enumerate(record.attempts):
        judgement = judged.get(number)
        if judgement is not None:
            said = _verdict(judgement)
        elif attempt.failure is not None:
            said = f"failed ({attempt.failure})"
        elif attempt.endpoint == top:
            said = "not judged: no tier is above it"
        else:
            said = "not judged: it went on with an answer that another tier had begun"
        screen.line(f"    {attempt.endpoint}: {said}", style=screen.colour(attempt.endpoint))
    for move in record.migrations:
        if move.reason == "confidence" and move.cut_char and move.outcome == "switched":
            screen.line(f"    {move.target} goes on behind character {move.cut_char}", style="dim")
    screen.line(f"    so far: {totals.bytes:,} bytes on the wire, {totals.spent}", style="dim")


def _verdict(judgement: JudgementRecord) -> str:
    """Return a judgement in words: the score, what it was compared with, and what followed."""
    followed = {"kept": "kept", "handed_up": "handed up", "stood": "stood, for want of a higher tier"}
    if judgement.score is None:
        return ": ".join([f"not judged ({judgement.why})", followed.get(judgement.outcome, "kept")])
    against = "the first score of this tier"
    if judgement.threshold is not None:
        against = f"threshold {judgement.threshold:.3f} of {_count(judgement.history, 'earlier score')}"
    outcome = followed[judgement.outcome]
    return f"score {judgement.score:.3f} after {_count(judgement.tokens, 'token')}, {against}: {outcome}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _summary(screen: Screen, totals: Totals) -> None:
    rows = [
        (tier, totals.attempts[tier], totals.judged[tier], totals.risen[tier], _share(totals, tier))
        for tier in TIERS
    ]
    screen.line()
    screen.table(
        f"All answers by tier; beta is {BETA:g}",
        ("tier", "answers", "judged", "handed up", "share"),
        rows,
    )
    screen.line(
        "handed up: sent on to the next tier; share: of the judged answers, about beta in the long run. A verdict is "
        "by rank and, among equal ranks, by lot, so that a score next to the threshold may go either way. bytes on the "
        "wire: sent and received by this machine, headers and log probabilities included; ct: US cents; J: energy.",
        style="dim",
    )


def _share(totals: Totals, tier: str) -> str:
    judged = totals.judged[tier]
    return f"{totals.risen[tier] / judged:.0%}" if judged else "–"
