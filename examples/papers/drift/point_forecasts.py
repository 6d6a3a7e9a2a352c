"""The paper's four point forecasts of the next TTFT, each a step ahead over a whole sequence.

Forecasts see every time, also of requests that the server lost: more than a client sees. Before the first
`_LAGS` times, the forecast is the mean of those there are. The paper gives no parameters; those here are ordinary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["FORECASTS", "NEEDS_SKLEARN", "errors", "forecast", "has_sklearn"]

_LAGS: Final = 10
_SMOOTHING: Final = 0.3
_TRAIN_EVERY: Final = 400  # times between two trainings of a forest
_TRAIN_ON: Final = 1000  # newest times of a training
_FIRST: Final = 100  # times before the first training

Floats = NDArray[np.float64]


def forecast(name: str, ttft_s: Floats, seed: int) -> Floats:
    """Return, for each time, what was forecast from those before it: s, float64, shape (n,).

    Args:
        name: a key of `FORECASTS`.
        ttft_s: s, shape (n,), n >= 1.
        seed: of the forests.
    """
    return FORECASTS[name](ttft_s, seed)


def errors(predicted_s: Floats, ttft_s: Floats) -> tuple[float, float]:
    """Return the mean absolute percentage error (as a share) and the mean absolute error, s."""
    off = np.abs(predicted_s - ttft_s)
    return float(np.mean(off / ttft_s)), float(np.mean(off))


def has_sklearn() -> bool:
    """Whether the forests can be trained here."""
    try:
        import sklearn  # noqa: F401, PLC0415 - an extra, and heavy
    except ImportError:
        return False
    return True


def _moving_average(ttft_s: Floats, seed: int = 0) -> Floats:  # noqa: ARG001 - a forecast's signature
    sums = np.concatenate([[0.0], ttft_s.cumsum()])
    end = np.arange(ttft_s.size)
    begin = np.maximum(end - _LAGS, 0)
    mean: Floats = (sums[end] - sums[begin]) / np.maximum(end - begin, 1)
    mean[0] = ttft_s[0]
    return mean


def _smoothing(ttft_s: Floats, seed: int = 0) -> Floats:  # noqa: ARG001
    out, level = np.empty(ttft_s.size), float(ttft_s[0])
    for row, value in enumerate(ttft_s.tolist()):
        out[row] = level
        level += _SMOOTHING * (value - level)
    return out


def _trained(ttft_s: Floats, make: Callable[[], Any]) -> Floats:
    """Forecast the logarithm from the last `_LAGS` ones, with a model that is trained anew from time to time."""
    logs = np.log(np.maximum(ttft_s, 1e-3))
    lagged = np.lib.stride_tricks.sliding_window_view(logs, _LAGS)  # row i: the times before i + _LAGS
    out = _moving_average(ttft_s)
    for at in range(_FIRST, ttft_s.size, _TRAIN_EVERY):
        rows = np.arange(max(_LAGS, at - _TRAIN_ON), at)
        model = make().fit(lagged[rows - _LAGS], logs[rows])
        ahead = np.arange(at, min(at + _TRAIN_EVERY, ttft_s.size))
        out[ahead] = np.exp(model.predict(lagged[ahead - _LAGS]))
    return out


def _random_forest(ttft_s: Floats, seed: int) -> Floats:
    from sklearn.ensemble import RandomForestRegressor  # noqa: PLC0415 - an extra, and heavy

    return _trained(ttft_s, lambda: RandomForestRegressor(40, min_samples_leaf=5, random_state=seed))


def _boosted_trees(ttft_s: Floats, seed: int) -> Floats:
    from sklearn.ensemble import GradientBoostingRegressor  # noqa: PLC0415 - an extra, and heavy

    return _trained(ttft_s, lambda: GradientBoostingRegressor(n_estimators=60, random_state=seed))


FORECASTS: Final[Mapping[str, Callable[[Floats, int], Floats]]] = MappingProxyType(
    {
        "moving average": _moving_average,
        "exponential smoothing": _smoothing,
        "random forest": _random_forest,
        "boosted trees": _boosted_trees,
    }
)
NEEDS_SKLEARN: Final = frozenset(("random forest", "boosted trees"))
