"""The keys of a fleet's TOML file. Times are milliseconds there, because the field states them so."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from disco.speculate import window_of

__all__ = [
    "Arrivals",
    "AutoTopology",
    "Batching",
    "DrafterPool",
    "FleetScenario",
    "Length",
    "Link",
    "LinkBetween",
    "MadeUp",
    "Requests",
    "TargetPool",
]

Ms = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Length(_Section):
    """A length in tokens: log-normal with this mean and standard deviation; always the mean where `sd` is 0."""

    mean: Positive
    sd: Ms = 0.0


class _Costs(_Section):
    """What a model costs on its hardware. One of: `hardware` (shipped tables), `steps_ms`, `costs` (a file)."""

    model: str = ""
    hardware: str = ""
    gpus: Count = 1
    steps_ms: tuple[tuple[Count, Positive], ...] = ()
    costs: str = ""
    overhead_ms: Ms = 0.0  # of each pass
    all_reduce: bool = True  # whether the exchange between GPUs counts
    launch_ms: Ms = 0.02  # of each all-reduce, as in Vidur

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [name for name in ("hardware", "steps_ms", "costs") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                "needs exactly one of hardware (with model; shipped tables), steps_ms (pairs of rows and ms) and costs "
                f"(a file of measurements); given: {', '.join(given) or 'none'}"
            )
        if self.hardware and not self.model:
            raise ValueError('hardware needs model, such as model = "llama-2-70b"')
        return self


class _Pool(_Costs):
    """Members of one kind. `count` of them, or a `share` of those that [auto_topology] distributes."""

    name: str
    count: Count | None = None
    share: Positive | None = None
    vocabulary: str = ""  # drafters draft only for targets with the same one

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if (self.count is None) == (self.share is None):
            raise ValueError("needs either count or share (share: of the members in [auto_topology])")
        return self


class TargetPool(_Pool):
    """Servers with the large model.

    `slots`: answers whose caches a server holds at once, others wait; 0: no limit. `draft_*`: the small model beside
    it, for the mode "fused".
    """

    slots: Annotated[int, Field(ge=0)] = 0
    draft_model: str = ""
    draft_gpus: Count = 1
    draft_steps_ms: tuple[tuple[Count, Positive], ...] = ()


class DrafterPool(_Pool):
    """Devices with the small model. A device works on one request at a time; others wait for it.

    `steps_ms` and tables: one row is a drafted token, many rows are a prompt.
    """


class Link(_Section):
    """The network between a drafter and its target.

    `rtt_ms` is the time there and back, or one way where `rtt_is` says so. `jitter_ms`: standard deviation of the delay
    one way; messages do not overtake each other. With `up_mbps`, `down_mbps` a device's messages wait for each other.
    """

    rtt_ms: Ms
    rtt_is: Literal["round", "one_way"] = "round"
    jitter_ms: Ms = 0.0
    up_mbps: Positive | None = None
    down_mbps: Positive | None = None

    @property
    def one_way_s(self) -> float:
        """Delay in one direction, s."""
        return self.rtt_ms / 1e3 / (2 if self.rtt_is == "round" else 1)


class LinkBetween(Link):
    """A link between pools; "*" is any pool. The first that fits counts."""

    drafters: str = "*"
    targets: str = "*"


class AutoTopology(_Section):
    """Distributes numbers of targets and drafters over pools by their shares, and links every pair alike."""

    targets: Count | None = None
    drafters: Count | None = None
    link: Link | None = None


class Routing(_Section):
    """Which target a request is sent to, among those with the drafter's vocabulary."""

    policy: Literal["random", "round_robin", "shortest_queue", "power_of_two"] = "shortest_queue"


class Batching(_Section):
    """How a server forms a batch.

    `max_batch`: sequences. `max_rows`: tokens of the batch; 0: no limit (a prompt longer than that runs alone).
    `window_ms`: how long a server without work waits for more once a request has come. `order`: "length_aware" puts
    those together whose lengths are within `similar` of the first one's. `continuous`: whether a pass takes whatever
    waits; else prompts and rounds have passes of their own, and answers that the server writes alone stay together
    until the last of them ends. `chunk_tokens`: prompts are read in chunks beside the rounds, so that a pass has at
    most so many rows; 0: whole. `padded`: each sequence costs as much attention as the longest of the batch.
    """

    order: Literal["fifo", "length_aware"] = "fifo"
    max_batch: Count = 64
    max_rows: Annotated[int, Field(ge=0)] = 0
    window_ms: Ms = 0.0
    similar: Positive = 0.25
    continuous: bool = True
    chunk_tokens: Annotated[int, Field(ge=0)] = 0
    padded: bool = False

    @model_validator(mode="after")
    def _chunks_are_continuous(self) -> Self:
        if self.chunk_tokens and not self.continuous:
            raise ValueError("chunk_tokens needs continuous = true: a chunk shares its pass with rounds")
        return self


class Arrivals(_Section):
    """When requests come.

    `closed_loop`: each drafter sends its next request `think_ms` after an answer. `poisson`: `rate` requests/s of the
    whole system. `trace`: the times and drafters of the trace, `speed` times as fast. `requests`: how many in all;
    0: each of the trace once. `ramp_ms`: the first requests of a closed loop come within this time.
    """

    kind: Literal["closed_loop", "poisson", "trace"] = "closed_loop"
    requests: Annotated[int, Field(ge=0)] = 0
    rate: Positive = 1.0
    think_ms: Ms = 0.0
    ramp_ms: Ms = 0.0
    speed: Positive = 1.0


class MadeUp(_Section):
    """Requests drawn from a few figures; see `made_up_requests`."""

    count: Count = 100
    prompt_tokens: Length
    output_tokens: Length
    acceptance: Share
    spread: Ms = 0.0
    correlation: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _spread_exists(self) -> Self:
        most = (self.acceptance * (1 - self.acceptance)) ** 0.5
        if self.spread and self.spread >= most:
            raise ValueError(f"spread must be below {most:.3g} for an acceptance of {self.acceptance}")
        return self


class Requests(_Section):
    """A `trace` file, or `made_up` ones."""

    trace: str = ""
    made_up: MadeUp | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if bool(self.trace) == (self.made_up is not None):
            raise ValueError('needs either trace = "FILE" or [requests.made_up]')
        return self


class FleetScenario(_Section):
    """A fleet.

    `mode`: "distributed" (drafters draft, targets verify), "fused" (both on the target's server) or "alone" (no draft).
    `parallel`: windows in flight of one answer. `window`: its name and settings, as `disco.speculate.window_of`
    takes them. `skip_ms`: requests that arrive earlier do not count in the figures. `until_ms`: the run ends then.
    """

    name: str
    seed: Annotated[int, Field(ge=0)] = 1
    mode: Literal["distributed", "fused", "alone"] = "distributed"
    parallel: Count = 1
    window: dict[str, Any] = {"name": "static"}
    targets: Annotated[tuple[TargetPool, ...], Field(min_length=1)]
    drafters: Annotated[tuple[DrafterPool, ...], Field(min_length=1)]
    links: tuple[LinkBetween, ...] = ()
    auto_topology: AutoTopology = AutoTopology()
    routing: Routing = Routing()
    batching: Batching = Batching()
    arrivals: Arrivals = Arrivals()
    requests: Requests
    skip_ms: Ms = 0.0
    until_ms: Positive | None = None

    @field_validator("window")
    @classmethod
    def _window_exists(cls, window: dict[str, Any]) -> dict[str, Any]:
        settings = dict(window)
        window_of(str(settings.pop("name", "static")), **settings)
        return window

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for what in ("targets", "drafters"):
            pools: tuple[_Pool, ...] = getattr(self, what)
            names = [pool.name for pool in pools]
            if len(set(names)) < len(names):
                raise ValueError(f"two pools of {what} have one name")
            if any(pool.share for pool in pools) and getattr(self.auto_topology, what) is None:
                raise ValueError(f"pools of {what} have a share: give their number, auto_topology.{what}")
            if getattr(self.auto_topology, what) is not None and not any(pool.share for pool in pools):
                raise ValueError(f"auto_topology.{what} is given, but no pool of {what} has a share")
        if self.mode == "fused" and any(
            not pool.draft_model and not pool.draft_steps_ms for pool in self.targets
        ):
            raise ValueError('mode = "fused" needs draft_model or draft_steps_ms in every pool of targets')
        if self.parallel > 1 and self.mode != "distributed":
            raise ValueError(f'parallel = {self.parallel} needs mode = "distributed"')
        if self.arrivals.kind == "closed_loop" and not self.arrivals.requests and self.until_ms is None:
            raise ValueError("a closed loop needs arrivals.requests or until_ms, else it never ends")
        if self.requests.made_up is not None and self.arrivals.kind == "trace":
            raise ValueError('arrivals.kind = "trace" needs requests.trace')
        return self

    def new_window(self) -> Any:
        """Return a new window, for one pair of drafter and target."""
        settings = dict(self.window)
        return window_of(str(settings.pop("name", "static")), **settings)
