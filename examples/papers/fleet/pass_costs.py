"""The costs of one model on one server, in the form that the simulator asks for thousands of times a second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from papers.fleet.cost_predictor import Basis, Shape, layer_curve, model_of, predict
from papers.fleet.cost_tables import Curve, attention_table

__all__ = ["PassCosts", "gpu_costs", "step_costs"]

# Prices of all-reduces and of the head are looked up at these rows; between them the curves of the tables are finer.
_ROWS: Final = (*range(1, 65), *range(72, 257, 8), *range(288, 1025, 32), *range(1152, 4097, 128))


@dataclass(frozen=True, eq=False)
class PassCosts:
    """The time of one pass over a batch, s.

    Mutable only as a cache of what was asked before.

    Attributes:
        layers: over the rows of the batch; all layers and all-reduces, no attention.
        head: over the rows whose logits are needed.
        overhead_s: of each pass.
        attention_s: of each pass.
        kv_s: for each token in the caches that the pass reads.
        row_kv_s: for each pair of a row and a token before it.
        grid: (hardware, model, GPUs, layers) of a table of attention that is used instead of `attention_s` and `kv_s`.
        basis: whether the layers' times are measured on this hardware.
    """

    layers: Curve
    head: Curve
    overhead_s: float = 0.0
    attention_s: float = 0.0
    kv_s: float = 0.0
    row_kv_s: float = 0.0
    grid: tuple[str, str, int, float] | None = None
    basis: Basis = "measured"

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rows_s", {})

    _rows_s: dict[tuple[int, int], float] = None  # type: ignore[assignment]  # set above

    def rows_s(self, rows: int, logits: int) -> float:
        """Return the time of all but attention, for `rows` rows, `logits` of which pass through the head."""
        found = self._rows_s.get((rows, logits))
        if found is None:
            found = self.overhead_s + self.layers.at(rows) + self.head.at(logits)
            self._rows_s[rows, logits] = found
        return found

    def attending_s(self, sequences: int, kv_tokens: int, row_kv: int) -> float:
        """Return the time of attention of rounds and single tokens.

        Args:
            sequences: in the batch; above 0.
            kv_tokens: in the caches of all of them.
            row_kv: the sum over sequences of their rows times their cached tokens.
        """
        if self.grid is not None:
            return _grid_decode_s(self.grid, sequences, kv_tokens // sequences) + self.row_kv_s * row_kv
        return self.attention_s + self.kv_s * kv_tokens + self.row_kv_s * row_kv

    def prompt_attention_s(self, chunk: int, before: int) -> float:
        """Return the time of attention of one prompt's chunk behind `before` tokens."""
        if self.grid is not None:
            return _grid_prompt_s(self.grid, chunk, before)
        return self.attention_s + self.row_kv_s * chunk * (before + chunk)

    def verify_s(self, rows: int, kv_tokens: int) -> float:
        """Return the time of a pass with one sequence and all logits: a round, or with one row a single token."""
        return self.rows_s(rows, rows) + self.attending_s(1, kv_tokens, rows * kv_tokens)


@cache
def _grid_decode_s(grid: tuple[str, str, int, float], sequences: int, mean_tokens: int) -> float:
    hardware, model, gpus, layers = grid
    table = attention_table(hardware, model, gpus)
    assert table is not None
    return layers * table.decode_s(sequences, mean_tokens)


@cache
def _grid_prompt_s(grid: tuple[str, str, int, float], chunk: int, before: int) -> float:
    hardware, model, gpus, layers = grid
    table = attention_table(hardware, model, gpus)
    assert table is not None
    return layers * table.prefill_s(chunk, before)


@cache  # a fleet's pools ask for the same costs again and again
def gpu_costs(
    model: str,
    hardware: str,
    gpus: int = 1,
    *,
    overhead_s: float = 0.0,
    all_reduce: bool = True,
    launch_s: float = 0.0,
) -> PassCosts:
    """Return the costs of a model on GPUs, from the shipped tables.

    Args:
        model: see `Shape.model`.
        hardware: see `predict`.
        gpus: over which the model is divided.
        overhead_s: of each pass, beside the kernels.
        all_reduce: whether the GPUs' exchange counts; the DSD paper's predictor leaves it out.
        launch_s: of each all-reduce.

    Raises:
        ConfigurationError: as `predict`.
    """
    same, shape = model_of(model)
    curve, basis = layer_curve(model, gpus, hardware)
    rows = sorted({*_ROWS, *(int(x) for x in curve.x)})
    launches = 2 * shape.layers * same.scale * launch_s if gpus > 1 else 0.0

    def exchange_s(count: int) -> float:
        if not all_reduce or gpus == 1:
            return 0.0
        return predict("all_reduce", Shape(model, gpus, count), hardware).seconds + launches

    layers = Curve.through((count, curve.at(count) + exchange_s(count)) for count in rows)
    head = Curve.through(
        (count, predict("head", Shape(model, gpus, count), hardware).seconds) for count in rows
    )
    none = predict("attention", Shape(model, gpus, kv_tokens=0), hardware)
    some = predict("attention", Shape(model, gpus, kv_tokens=1000), hardware)
    # A prompt's attention is linear in chunk × (before + chunk): one point gives the factor.
    prompt = predict("prompt attention", Shape(model, gpus, rows=1000), hardware)
    grid = (hardware, same.table, gpus, shape.layers * same.scale)
    tabled = attention_table(hardware, same.table, gpus) is not None
    return PassCosts(
        layers,
        head,
        overhead_s=overhead_s,
        attention_s=none.seconds,
        kv_s=(some.seconds - none.seconds) / 1000,
        row_kv_s=0.0 if tabled else (prompt.seconds - none.seconds) / 1e6,
        grid=grid if tabled else None,
        basis=basis,
    )


def step_costs(
    points: Iterable[Sequence[float]], *, overhead_s: float = 0.0, kv_s: float = 0.0, row_kv_s: float = 0.0
) -> PassCosts:
    """Return costs from measured steps: (rows, seconds) of whole passes, the head included.

    Args:
        points: at least one.
        overhead_s: of each pass.
        kv_s: see `PassCosts`.
        row_kv_s: see `PassCosts`.
    """
    curve = Curve.through((float(rows), float(seconds)) for rows, seconds in points)
    return PassCosts(curve, Curve((1.0,), (0.0,)), overhead_s=overhead_s, kv_s=kv_s, row_kv_s=row_kv_s)
