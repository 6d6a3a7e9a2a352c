"""Which endpoints may serve a request, which start when, and where the answer may move."""

from disco.candidate import Candidate
from disco.dispatch.arranging import Arrangement, Arranging, BudgetClass
from disco.dispatch.dispatcher import Dispatcher
from disco.dispatch.eligibility import eligible
from disco.dispatch.planners.optimal_plan import OptimalPlan, plan_optimal_waits
from disco.dispatch.planners.wait_quantiles import SplitWait, WaitByLength
from disco.dispatch.policies.baselines import DeviceOnly, Race, ServerOnly
from disco.dispatch.policies.length_threshold import (
    LengthThreshold,
    ThresholdPlan,
    plan_threshold,
    plan_threshold_samples,
)
from disco.dispatch.policies.optimal_wait import OptimalWait
from disco.dispatch.policies.policy import (
    Delays,
    ErrorDiffusion,
    FittedPolicy,
    Policy,
    PolicyFactory,
    VectorPolicy,
)
from disco.dispatch.policies.policy_registry import build_policy, known_policies
from disco.dispatch.policies.random_split import RandomSplit
from disco.dispatch.policies.wait_time import WaitPlan, WaitTime, plan_waits, plan_waits_samples
from disco.dispatch.presets import DispatchSection, Preset, available_presets, load_preset
from disco.dispatch.regime import Regime, regime
from disco.dispatch.request_features import Features, estimate_tokens, features_of
from disco.dispatch.two_sided import TwoSided
from disco.plan import Migration, Plan, Start

__all__ = [
    "Arrangement",
    "Arranging",
    "BudgetClass",
    "Candidate",
    "Delays",
    "DeviceOnly",
    "DispatchSection",
    "Dispatcher",
    "ErrorDiffusion",
    "Features",
    "FittedPolicy",
    "LengthThreshold",
    "Migration",
    "OptimalPlan",
    "OptimalWait",
    "Plan",
    "Policy",
    "PolicyFactory",
    "Preset",
    "Race",
    "RandomSplit",
    "Regime",
    "ServerOnly",
    "SplitWait",
    "Start",
    "ThresholdPlan",
    "TwoSided",
    "VectorPolicy",
    "WaitByLength",
    "WaitPlan",
    "WaitTime",
    "available_presets",
    "build_policy",
    "eligible",
    "estimate_tokens",
    "features_of",
    "known_policies",
    "load_preset",
    "plan_optimal_waits",
    "plan_threshold",
    "plan_threshold_samples",
    "plan_waits",
    "plan_waits_samples",
    "regime",
]
