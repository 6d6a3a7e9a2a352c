"""Small files of random weights for a model: a LoRA adapter, and a projector for images."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path

import gguf
import numpy as np

__all__ = ["IMAGE_TOKENS", "image", "lora_file", "projector_file"]

IMAGE_TOKENS = 4
"""What an image comes to with such a projector."""
_PATCH, _MERGED, _PATCHES = 14, 4, 8
_RANK = 4


def lora_file(
    model: Path, path: Path, *, size: float = 0.3, architecture: str | None = None, wider: int = 0
) -> Path:
    """Write an adapter for the queries of a model.

    Args:
        model: its GGUF file.
        path: of the adapter.
        size: of its weights.
        architecture: that it says it is for; None: the model's.
        wider: how much wider its tensors are than they should be.
    """
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(path, architecture or reader.fields["general.architecture"].contents())
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(_RANK))
    rng = np.random.default_rng(1)
    for tensor in reader.tensors:
        if tensor.name.endswith("attn_q.weight"):
            columns, rows = (int(number) for number in tensor.shape[:2])
            for part, shape in {"a": (_RANK, columns + wider), "b": (rows, _RANK)}.items():
                weights = rng.normal(0, size, shape).astype(np.float32)
                writer.add_tensor(f"{tensor.name}.lora_{part}", weights)
    return _written(writer, path)


def projector_file(path: Path, *, hidden: int) -> Path:
    """Write a projector of the kind that Gemma 3 has: an image becomes `IMAGE_TOKENS` states, all seen at once.

    Args:
        path: of the projector.
        hidden: length of a state of the model that is to see.
    """
    writer, own = gguf.GGUFWriter(path, "clip"), 32
    writer.add_type("mmproj")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    writer.add_string("clip.projector_type", "gemma3")
    numbers = {
        "embedding_length": own,
        "feed_forward_length": 2 * own,
        "block_count": 1,
        "projection_dim": hidden,
        "image_size": _PATCH * _PATCHES,
        "patch_size": _PATCH,
        "attention.head_count": 2,
        "projector.scale_factor": _MERGED,
    }
    for name, number in numbers.items():
        writer.add_uint32(f"clip.vision.{name}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    for name in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{name}", [0.5] * 3)
    square = ("attn_q", "attn_k", "attn_v", "attn_out")
    shapes: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (own, 3, _PATCH, _PATCH),
        "v.position_embd.weight": (_PATCHES**2, own),
        **{f"v.blk.0.{one}.weight": (own, own) for one in square},
        "v.blk.0.ffn_up.weight": (2 * own, own),
        "v.blk.0.ffn_down.weight": (own, 2 * own),
        **{
            f"{norm}.{part}": (own,)
            for norm in ("v.blk.0.ln1", "v.blk.0.ln2", "v.post_ln")
            for part in ("weight", "bias")
        },
        "mm.soft_emb_norm.weight": (own,),
        "mm.input_projection.weight": (own, hidden),
    }
    rng = np.random.default_rng(2)
    for name, shape in shapes.items():
        writer.add_tensor(name, rng.normal(0, 0.3, shape).astype(np.float32))
    return _written(writer, path)


def _written(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def image(seed: int, *, side: int = _PATCH * _PATCHES) -> dict[str, object]:
    """Return a part of a message: a PNG of noise."""
    noise = np.random.default_rng(seed).integers(0, 256, (side, 3 * side), dtype=np.uint8)
    raw = b"".join(b"\0" + row.tobytes() for row in noise)
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", head), (b"IDAT", zlib.compress(raw)), (b"IEND", b""))
    )
    return {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{base64.b64encode(png).decode()}"},
    }
