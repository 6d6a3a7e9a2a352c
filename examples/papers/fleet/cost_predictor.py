"""`predict(op, shape, hardware)`: the time of an operation, and whether it was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from disco.errors import ConfigurationError, nearest
from papers.fleet.cost_tables import (
    Curve,
    ModelShape,
    attention_table,
    layer_curves,
    model_shapes,
    reduce_curves,
)
from papers.fleet.stand_ins import (
    ATTENTION_BANDWIDTH_SHARE,
    ATTENTION_FLOPS_SHARE,
    ATTENTION_LAYER_S,
    GPUS,
    MODELS,
    NODES,
    SAME_LAYERS,
    Gpu,
    SameShape,
)

__all__ = ["Basis", "Op", "Prediction", "Shape", "gpu_of", "layer_curve", "model_of", "predict"]

Basis = Literal["measured", "stand-in"]
"""Whether a figure is measured (or lies between measured points), or rests on another hardware, model or a formula."""

Op = Literal["layers", "attention", "prompt attention", "all_reduce", "head", "pass"]
"""Matrix products and norms of all layers; attention of rounds and single tokens, or of prompts, in all layers; the
all-reduces of all layers; the output head; all of these."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What is computed.

    Attributes:
        model: a name of `stand_ins.MODELS`, or of the tables.
        gpus: over which the model is divided (tensor parallel).
        rows: tokens in the batch.
        sequences: to which the rows belong.
        kv_tokens: tokens in the caches of all sequences together, before the pass.
    """

    model: str
    gpus: int = 1
    rows: int = 1
    sequences: int = 1
    kv_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted time, s."""

    seconds: float
    basis: Basis


def predict(op: Op, shape: Shape, hardware: str) -> Prediction:
    """Return the time of an operation on a piece of hardware.

    Args:
        op: see `Op`.
        shape: what is computed.
        hardware: a name of `stand_ins.GPUS`.

    Raises:
        ConfigurationError: unknown operation, model or hardware, or no table to start from.
    """
    if op not in get_args(Op):
        raise ConfigurationError(f"no operation is called {op!r}. {nearest(op, get_args(Op))}")
    if op == "pass":
        parts = [predict(part, shape, hardware) for part in ("layers", "attention", "all_reduce", "head")]
        measured = all(part.basis == "measured" for part in parts)
        return Prediction(sum(part.seconds for part in parts), "measured" if measured else "stand-in")
    if op == "layers":
        curve, basis = layer_curve(shape.model, shape.gpus, hardware)
        return Prediction(curve.at(shape.rows), basis)
    if op == "head":
        return Prediction(_head_s(shape, hardware), "stand-in")
    if op == "all_reduce":
        return _all_reduce(shape, hardware)
    return _attention(shape, hardware, is_prompt=op == "prompt attention")


def gpu_of(hardware: str) -> Gpu:
    """Return a GPU by its name."""
    if hardware not in GPUS:
        raise ConfigurationError(
            f"no hardware is called {hardware!r}. {nearest(hardware, GPUS)} For other hardware give measured steps: "
            '`steps_ms = [[1, 24.0], [8, 30.0]]` (rows, ms), or `costs = "FILE"`.'
        )
    return GPUS[hardware]


def model_of(name: str) -> tuple[SameShape, ModelShape]:
    """Return whose figures a model has, and its shape.

    Raises:
        ConfigurationError: an unknown model.
    """
    shapes = model_shapes()
    same = MODELS.get(name) or (SameShape(name) if name in shapes else None)
    if same is None:
        raise ConfigurationError(f"no step times are known for the model {name!r}. {nearest(name, MODELS)}")
    return same, shapes[same.table]


def layer_curve(model: str, gpus: int, hardware: str) -> tuple[Curve, Basis]:
    """Return the time of all layers without attention over the rows of a batch, s.

    Where the hardware has no table, the curve of the one that it is like is scaled: the time of one row, which is that
    of reading the weights, by the memories' bandwidths, and what more rows add by the tensor operations.

    Raises:
        ConfigurationError: as `predict`.
    """
    curves = layer_curves()
    same, _ = model_of(model)
    gpu = gpu_of(hardware)
    exact: Basis = "measured" if same.exact else "stand-in"
    for table in (same.table, SAME_LAYERS.get(same.table, same.table)):
        if found := curves.get((hardware, table, gpus)):
            return _scaled(found, same.scale, same.scale), exact
    if not gpu.like:
        known = sorted({f"{h} with {n} GPUs" for h, m, n in curves if m == same.table})
        raise ConfigurationError(
            f"no step times are known for {model!r} on {gpus} × {hardware}; known: {', '.join(known)}"
        )
    like, _ = layer_curve(model, gpus, gpu.like)
    other = gpu_of(gpu.like)
    return _scaled(like, other.bandwidth / gpu.bandwidth, other.flops / gpu.flops), "stand-in"


def _scaled(curve: Curve, first: float, more: float) -> Curve:
    if first == more == 1:
        return curve
    base = curve.y[0]
    return Curve(curve.x, tuple(base * first + max(0.0, y - base) * more for y in curve.y))


def _head_s(shape: Shape, hardware: str) -> float:
    """Return the head's time: that of the layers' weights, by the bytes."""
    curve, _ = layer_curve(shape.model, shape.gpus, hardware)
    _, model = model_of(shape.model)
    return curve.at(shape.rows) * model.head_bytes / model.linear_bytes


def _all_reduce(shape: Shape, hardware: str) -> Prediction:
    same, model = model_of(shape.model)
    gpu_of(hardware)
    if shape.gpus == 1:
        return Prediction(0.0, "measured")
    node = NODES.get(hardware, "")
    curve = reduce_curves().get((node, shape.gpus))
    if curve is None:
        known = sorted(
            {f"{h} × {n}" for h, node in NODES.items() for other, n in reduce_curves() if other == node}
        )
        raise ConfigurationError(
            f"no all-reduce times are known for {shape.gpus} × {hardware}; known: {', '.join(known)}"
        )
    seconds = 2 * model.layers * same.scale * curve.at(shape.rows * model.hidden * 2)
    return Prediction(seconds, "measured" if hardware == node.removesuffix("_dgx") else "stand-in")


def _attention(shape: Shape, hardware: str, *, is_prompt: bool) -> Prediction:
    same, model = model_of(shape.model)
    layers = model.layers * same.scale
    table = attention_table(hardware, same.table, shape.gpus)
    if table is not None:
        if is_prompt:
            layer_s = shape.sequences * table.prefill_s(
                shape.rows // shape.sequences, shape.kv_tokens / shape.sequences
            )
        else:
            layer_s = table.decode_s(shape.sequences, shape.kv_tokens / shape.sequences)
        return Prediction(layers * layer_s, "measured" if same.exact else "stand-in")
    gpu = gpu_of(hardware)
    if is_prompt:
        chunk, before = shape.rows / shape.sequences, shape.kv_tokens / shape.sequences
        operations = 4 * model.hidden * chunk * (before + chunk) * shape.sequences / shape.gpus
        layer_s = ATTENTION_LAYER_S * shape.sequences + operations / (gpu.flops * ATTENTION_FLOPS_SHARE)
    else:
        layer_bytes = model.kv_bytes_per_token / model.layers * shape.kv_tokens / shape.gpus
        layer_s = ATTENTION_LAYER_S + layer_bytes / (gpu.bandwidth * ATTENTION_BANDWIDTH_SHARE)
    return Prediction(layers * layer_s, "stand-in")
