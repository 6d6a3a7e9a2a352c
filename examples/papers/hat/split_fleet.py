"""What a fleet with a split model consists of, and the ways in which it may work: its arms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from disco.errors import ConfigurationError, nearest
from disco.speculate import Reply
from papers.fleet.pass_costs import PassCosts, gpu_costs

__all__ = ["ARMS", "DevicePool", "DeviceTimes", "SplitArm", "SplitFleet", "SplitModel", "arm_of"]

Rates = tuple[float, float]
"""Lowest and highest, bytes/s."""


@dataclass(frozen=True, slots=True)
class SplitArm:
    """A way of working.

    Attributes:
        name: of the arm.
        chunks: how the device cuts the prompt: not at all, by the paper's (3), or by the recursion's minimum.
        server_rows: most rows of a pass; a longer prompt is cut by the server. 0: no limit.
        drafting: "none"; a "tree" of candidates by further heads (Medusa); or a "drafter" that stops when it is unsure.
        parallel: whether the device drafts on while a draft is verified.
        exact_ahead: whether (6) counts the round trip and all rows; see `ahead_steps`.
        reply: which rows of a prompt come down. Of a draft all rows do in any case.
    """

    name: str
    chunks: Literal["none", "equation3", "makespan"] = "none"
    server_rows: int = 0
    drafting: Literal["none", "tree", "drafter"] = "none"
    parallel: bool = False
    exact_ahead: bool = False
    reply: Reply = "all"


ARMS: Final = {
    "u_shape": SplitArm("u_shape"),
    "u_sarathi": SplitArm("u_sarathi", server_rows=128),
    "u_medusa": SplitArm("u_medusa", drafting="tree"),
    "hat": SplitArm("hat", chunks="equation3", drafting="drafter", parallel=True),
    "hat_makespan": SplitArm(
        "hat_makespan", chunks="makespan", drafting="drafter", parallel=True, exact_ahead=True
    ),
}
"""The paper's four, and HAT with our chunks and all of (6)."""


def arm_of(name: str) -> SplitArm:
    """Return an arm by its name.

    Raises:
        ConfigurationError: there is none.
    """
    if name not in ARMS:
        raise ConfigurationError(f"no arm is called {name!r}. {nearest(name, ARMS)}")
    return ARMS[name]


@dataclass(frozen=True, slots=True)
class SplitModel:
    """A model, and what of it is in the cloud.

    Attributes:
        name: one that `gpu_costs` knows.
        hardware: of the cloud.
        layers: of the whole model.
        cloud_layers: of them in the cloud.
        state_bytes: of one token's hidden state.
    """

    name: str
    hardware: str
    layers: int
    cloud_layers: int
    state_bytes: int

    @property
    def costs(self) -> PassCosts:
        """The costs of all layers; `cloud_share` of them are the cloud's."""
        return gpu_costs(self.name, self.hardware)

    @property
    def cloud_share(self) -> float:
        """The part of the layers that is in the cloud."""
        return self.cloud_layers / self.layers


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """What the parts of the model on a device take, s, on the device that the pools compare themselves with.

    Attributes:
        shallow_s: shallow layers, of any number of rows: reading the weights.
        shallow_row_s: and for each row.
        head_s: the head, for a few rows.
        step_s: one step of the drafter: shallow layers, adapter, head.
        tree_s: the further heads that make a tree.
    """

    shallow_s: float
    shallow_row_s: float
    head_s: float
    step_s: float = 0.0
    tree_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DevicePool:
    """Devices of one kind: times `least` to `most` as long as `DeviceTimes`, by the drawn mode (log-uniform)."""

    name: str
    count: int
    least: float = 1.0
    most: float = 1.0


@dataclass(frozen=True, slots=True)
class SplitFleet:
    """A fleet at work.

    Attributes:
        arm: how it works.
        model: what it computes.
        times: on the devices.
        pools: of devices.
        up, down: rates of the links. Devices belong to groups in turn, each of which has its part of the range, the
            first the fastest; within it a rate is drawn anew for each request.
        rate: requests/s of the whole fleet (Poisson).
        pipeline: GPUs of the cloud, one behind the other.
        rtt_s: round trip without payload.
        groups: see `up`.
        mode_requests: after so many requests a device changes its mode.
        one_at_a_time: whether a device's requests wait for each other; else each has device and link to itself.
        tree_rows, tree_depth: candidates of a tree in a round, and the most of them that can be right.
        eta: drafting stops at the first token below this confidence, which is sent too; the paper's (5) as printed
            takes a maximum over positions, which would never stop in time.
        most: drafted tokens in a round.
        branch_hits: how often a wrong last token's correction is among the candidates of parallel drafting.
        seed: of arrivals, links, modes, branches.
    """

    arm: SplitArm
    model: SplitModel
    times: DeviceTimes
    pools: tuple[DevicePool, ...]
    up: Rates
    down: Rates
    rate: float
    pipeline: int = 1
    rtt_s: float = 0.0
    groups: int = 1
    mode_requests: int = 5
    one_at_a_time: bool = False
    tree_rows: int = 8
    tree_depth: int = 4
    eta: float = 0.6
    most: int = 12
    branch_hits: float = 0.5
    seed: int = 1

    def __post_init__(self) -> None:
        counts = (self.pipeline, self.groups, self.mode_requests, self.tree_rows, self.most)
        if min(counts) < 1 or not self.pools or any(pool.count < 1 for pool in self.pools):
            raise ConfigurationError(
                "pipeline, groups, mode_requests, tree_rows, most and pools are at least 1"
            )
        if not self.rate > 0 or not 0 <= self.eta <= 1 or not 0 <= self.branch_hits <= 1:
            raise ConfigurationError("rate is above 0, eta and branch_hits are from 0 to 1")
        for rates in (self.up, self.down):
            if not 0 < rates[0] <= rates[1]:
                raise ConfigurationError(f"rates are (lowest, highest) in bytes/s, not {rates}")
        for pool in self.pools:
            if not 0 < pool.least <= pool.most:
                raise ConfigurationError(f"{pool.name}: least and most are above 0, in this order")
