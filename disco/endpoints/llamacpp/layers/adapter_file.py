"""Trained adapters: their files, those that a package has, and how one gets into a device's file.

An adapter belongs to one set of weights and one number of layers, whatever the quantisation. A model's norms stay in 32
bits when it is quantised, so they tell which weights those are.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.layers.layer_files import KEY, read_layer_file
from disco.endpoints.llamacpp.model.gguf_files import require_gguf
from disco.endpoints.llamacpp.model.model_files import check_model_file
from disco.errors import ConfigurationError, ModelFileError

__all__ = [
    "KNOWN_ADAPTERS",
    "Adapter",
    "AdapterFacts",
    "fits",
    "fits_weights",
    "holds",
    "known_adapter",
    "put_adapter",
    "read_adapter",
    "weights_name",
    "write_adapter",
]

# (`weights_name`, layers before it) -> (package that contains the file, the file, how to install it).
KNOWN_ADAPTERS: Final = {
    ("norms:1278ce4e3befbe0b24a0b1ad", 2): (  # SmolLM2-135M-Instruct
        "disco_adapter_smollm2",
        "smollm2-135m-instruct.m2.npz",
        'pip install "git+https://github.com/disco-llm/disco#subdirectory=examples/adapter-smollm2"',
    ),
}
_FACTS: Final = "facts"
_NORMS: Final = ("output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight")


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """What an adapter's file says of it.

    Attributes:
        weights: `weights_name` of the model that it was trained for.
        layers: how many of the model's layers come before it.
        block: "full" or "attention".
        training_tokens: of the answers that it learned from.
        greedy_acceptance, sampled_acceptance: the share of held-out positions at which its best token is the model's
            best, given the true tokens before, in answers at temperatures 0 and 0.8.
        made: how it was made, for people.
    """

    weights: str
    layers: int
    block: str = "full"
    training_tokens: int = 0
    greedy_acceptance: float = 0.0
    sampled_acceptance: float = 0.0
    made: str = ""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A trained adapter.

    Attributes:
        facts: what it says of itself.
        tensors: by llama.cpp's names without `blk.N.`, shapes (outputs, inputs), as `cut_model` takes them.
    """

    facts: AdapterFacts
    tensors: dict[str, npt.NDArray[np.float32]] = field(repr=False)


def weights_name(path: Path) -> str:
    """Return a name for a model's weights that is the same for all quantisations, and for its device's file.

    Raises:
        ConfigurationError: the package `gguf` is missing.
        ModelFileError: the file is not usable, or has no such norms.
    """
    gguf = require_gguf()
    check_model_file(path)
    return _weights_name({one.name: one for one in gguf.GGUFReader(path).tensors}, path)


def _weights_name(tensors: Mapping[str, Any], path: Path) -> str:
    found = hashlib.sha256()
    for name in _NORMS:
        if name not in tensors:
            raise ModelFileError(f"{path} has no tensor {name}, so no adapter can belong to it.")
        found.update(np.asarray(tensors[name].data, np.float32).tobytes())
    return f"norms:{found.hexdigest()[:24]}"


def write_adapter(
    path: Path, tensors: Mapping[str, npt.NDArray[np.floating[Any]]], facts: AdapterFacts
) -> None:
    """Write an adapter's file: NumPy's .npz with numbers of 16 bits. A file of that name is replaced.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    arrays: dict[str, Any] = {name: one.astype(np.float16) for name, one in tensors.items()}
    arrays[_FACTS] = np.array(json.dumps(asdict(facts)))
    try:
        with draft.open("wb") as file:
            np.savez(file, **arrays)
        draft.replace(path)
    except OSError as broken:
        raise ConfigurationError(f"{path} cannot be written: {broken.strerror or broken}") from broken
    finally:
        draft.unlink(missing_ok=True)


def read_adapter(path: Path) -> Adapter:
    """Read an adapter's file.

    Raises:
        ModelFileError: it is missing, or is no adapter's file.
    """
    try:
        # Opened here, because NumPy leaves a file open that is no archive.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        said = json.loads(str(arrays.pop(_FACTS)[()]))
        facts = AdapterFacts(**{one.name: said[one.name] for one in fields(AdapterFacts)})
    except OSError as broken:
        raise ModelFileError(
            f"{path} cannot be read ({broken.strerror or type(broken).__name__})."
        ) from broken
    except (BadZipFile, AttributeError, EOFError, KeyError, TypeError, ValueError):
        raise ModelFileError(
            f"{path} is no adapter's file. Make one: disco adapter train MODEL --out FILE"
        ) from None
    if type(facts.layers) is not int or not isinstance(facts.weights, str):
        raise ModelFileError(f"{path} does not say which model its adapter is for. Train it again.")
    tensors = {name: one.astype(np.float32) for name, one in arrays.items()}
    if not tensors or not all(np.isfinite(one).all() for one in tensors.values()):
        raise ModelFileError(f"{path} holds no adapter, or one with numbers that are not finite.")
    return Adapter(facts, tensors)


def fits(adapter: Adapter, source: Path, layers: int) -> None:
    """Do nothing where an adapter was trained for these weights behind so many layers.

    Raises:
        ModelFileError: it was not; the message says how to make one that is.
    """
    if adapter.facts.layers != layers:
        raise ModelFileError(
            f"The adapter was trained behind {adapter.facts.layers} layers, and the device is to keep {layers}. "
            f"Train one: disco adapter train {source.name} --layers {layers}"
        )
    if adapter.facts.weights != weights_name(source):
        raise ModelFileError(
            f"The adapter was trained for another model than {source.name}, or for other weights of it. "
            f"Train one: disco adapter train {source.name} --layers {layers}"
        )


def fits_weights(device: Path, source: Path) -> None:
    """Do nothing where a device's file was cut from these weights, in whichever quantisation.

    Raises:
        ModelFileError: it was not.
    """
    if weights_name(device) != weights_name(source):
        raise ModelFileError(
            f"{device} was cut from another model than {source.name}, or from other weights of it."
        )


def known_adapter(source: Path, layers: int) -> Adapter | str | None:
    """Return the adapter of an installed package for these weights behind so many layers.

    Args:
        source: a whole model in any quantisation, or a device's file.
        layers: how many layers the device keeps.

    Returns:
        The adapter; what to type where its package is not installed; None where there is no such package.

    Raises:
        ConfigurationError: the package `gguf` is missing.
        ModelFileError: the installed file is not usable.
    """
    try:
        known = KNOWN_ADAPTERS.get((weights_name(source), layers))
    except (ModelFileError, ValueError, KeyError, IndexError):  # gguf's reader of a file that it cannot read
        return None  # whoever asked says better what is wrong with it
    if known is None:
        return None
    package, file, remedy = known
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return remedy
    return read_adapter(Path(spec.origin).with_name(file))


def holds(device: Path, adapter: Adapter) -> bool:
    """Return whether a device's file has this adapter.

    Raises:
        ConfigurationError: the package `gguf` is missing.
        ModelFileError: the file is no device's part.
    """
    gguf = require_gguf()
    known = read_layer_file(device, "device")
    if not known.has_adapter:
        return False
    there = {one.name: one.data for one in gguf.GGUFReader(device).tensors}
    return all(
        (found := there.get(f"blk.{known.layers}.{name}")) is not None
        and np.array_equal(found.astype(np.float16), one.astype(np.float16))
        for name, one in adapter.tensors.items()
    )


def put_adapter(device: Path, adapter: Adapter) -> None:
    """Write an adapter into a device's file that was cut already; the file is replaced once it is written.

    Raises:
        ConfigurationError: the package `gguf` is missing, or the file cannot be written.
        ModelFileError: the file is no device's part, or the adapter is for another model or number of layers.
    """
    gguf = require_gguf()
    layers = read_layer_file(device, "device").layers
    fits(adapter, device, layers)
    reader = gguf.GGUFReader(device)
    draft = device.with_suffix(f".{os.getpid()}.part")
    writer = gguf.GGUFWriter(draft, reader.get_field("general.architecture").contents())
    for one in reader.fields.values():
        if not one.name.startswith("GGUF.") and one.name not in ("general.architecture", f"{KEY}adapter"):
            of_items = one.types[-1] if one.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(one.name, one.contents(), one.types[0], sub_type=of_items)
    writer.add_bool(f"{KEY}adapter", True)
    prefix = f"blk.{layers}."
    data = []
    for one in reader.tensors:
        given = adapter.tensors.get(one.name.removeprefix(prefix)) if one.name.startswith(prefix) else None
        kind, array = one.tensor_type, one.data
        if given is not None:
            if tuple(given.shape[::-1]) != tuple(int(size) for size in one.shape):
                raise ModelFileError(
                    f"The adapter's tensor {one.name!r} has another shape than the model's layers."
                )
            kind = gguf.GGMLQuantizationType.F32 if given.ndim == 1 else gguf.GGMLQuantizationType.F16
            array = given.astype(np.float32 if given.ndim == 1 else np.float16)
        elif one.name.startswith(prefix):
            array = np.zeros_like(array)  # of an adapter before, perhaps with a feed-forward part
        writer.add_tensor_info(one.name, array.shape, array.dtype, array.nbytes, kind)
        data.append(array)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for array in data:
            writer.write_tensor_data(array)
        writer.close()
        draft.replace(device)
    except OSError as broken:
        raise ConfigurationError(f"{device} cannot be written: {broken.strerror or broken}") from broken
    finally:
        writer.close()
        draft.unlink(missing_ok=True)
