"""The mask: one bit for each unit that may be left out, and a hash of the text in its units.

As text, for JSON: `1.<hash, 16 hex digits>.<bits, base64url>`. The bits are deflated where that makes them shorter.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Sequence

from disco.errors import WrongMaskError
from disco.refine.content import Turn

__all__ = ["decode_mask", "encode_mask"]

_VERSION = "1"  # of the rules that cut a text into units: another version means other bits
_PLAIN, _DEFLATED = b"p", b"z"
_MOST_BYTES = 1 << 20  # of the bits: no mask makes a client inflate more


def encode_mask(turns: Sequence[Turn], kept: Sequence[bool]) -> str:
    """Return the mask that keeps these units.

    Args:
        turns: of the conversation, with all its units.
        kept: of each optional unit of all turns, in order.
    """
    number = sum(1 << place for place, one in enumerate(kept) if one)
    plain = number.to_bytes((len(kept) + 7) // 8, "little")
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    deflated = packer.compress(plain) + packer.flush()
    data = _DEFLATED + deflated if len(deflated) < len(plain) else _PLAIN + plain
    return f"{_VERSION}.{_digest(turns)}.{base64.urlsafe_b64encode(data).decode().rstrip('=')}"


def decode_mask(turns: Sequence[Turn], mask: str) -> list[bool]:
    """Return which units a mask keeps.

    Args:
        turns: of the conversation that the mask was made for.
        mask: as `encode_mask` returned it.

    Raises:
        WrongMaskError: the mask is for another text or for other rules, or it is damaged.
    """
    version, _, rest = mask.partition(".")
    digest, _, encoded = rest.partition(".")
    if version != _VERSION:
        raise WrongMaskError("The mask was made by another version of disco; refine the prompt without it.")
    if digest != _digest(turns):
        raise WrongMaskError("The mask is for another text; refine the prompt without it.")
    count = sum(len(turn.optional()) for turn in turns)
    bits = _bits(encoded)
    if len(bits) != (count + 7) // 8:
        raise WrongMaskError(f"The mask is damaged: {len(bits)} bytes for {count} units.")
    number = int.from_bytes(bits, "little")
    return [bool(number >> place & 1) for place in range(count)]


def _bits(encoded: str) -> bytes:
    try:
        data = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        if data[:1] == _PLAIN:
            return data[1:]
        if data[:1] == _DEFLATED:
            return zlib.decompressobj(-15).decompress(data[1:], _MOST_BYTES)
    except (ValueError, binascii.Error, zlib.error):
        pass
    raise WrongMaskError("The mask is damaged: its bits cannot be read.")


def _digest(turns: Sequence[Turn]) -> str:
    digest = hashlib.sha256()
    for turn in turns:
        for passage in turn.passages:
            digest.update(f"{passage.message} {passage.part} {len(passage.units)}\n".encode())
            for unit, optional in zip(passage.units, passage.optional, strict=True):
                data = unit.text.encode("utf-8", "surrogatepass")
                digest.update(f"{optional:d} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:16]
