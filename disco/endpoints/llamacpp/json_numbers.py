"""Grammar expressions for the numbers of a range."""

from __future__ import annotations

from disco.endpoints.llamacpp.gbnf import alternatives

__all__ = ["integers", "numbers"]

_MOST_DIGITS = 16
_FRACTION = '"." [0-9]{1,15}'
_NONZERO_FRACTION = '"." [0-9]{0,14} [1-9]'


def integers(low: int | None, high: int | None) -> str | None:
    """The integers from `low` to `high`, both included; None where there is none."""
    found = []
    if high is None or high >= 0:
        found.append(_natural(max(low or 0, 0), high))
    if low is None or low < 0:
        most = None if low is None else -low
        negative = _natural(max(-(high if high is not None else 0), 1), most)
        found.append(negative and f'"-" {negative}')
    possible = [one for one in found if one is not None]
    return alternatives(possible) if possible else None


def numbers(low: int | None, high: int | None, *, above: bool = False, below: bool = False) -> str | None:
    """The decimal numbers from `low` to `high`; None where there is none.

    Args:
        low: the lower bound, None for none.
        high: the upper bound, likewise.
        above: the lower bound itself is excluded.
        below: the upper one is.
    """

    def one_sign(least: int, most: int | None, *, mirrored: bool) -> str | None:
        open_low, open_high = (below, above) if mirrored else (above, below)
        # Zero itself is a bound only where the range does not go on at the other side of it.
        open_low = open_low and least == (-(high or 0) if mirrored else low)
        found = []
        whole = _natural(least + open_low, None if most is None else most - open_high)
        if whole is not None:
            found.append(whole)
        # n.f lies between n and n + 1, the end of which it never reaches.
        broken = _natural(least + open_low, None if most is None else most - 1)
        if broken is not None:
            found.append(f"{broken} {_FRACTION}")
        if open_low and (most is None or least < most):
            found.append(f'"{least}" {_NONZERO_FRACTION}')
        return alternatives(found) if found else None

    found = []
    if high is None or high >= 0:
        found.append(one_sign(max(low or 0, 0), high, mirrored=False))
    if low is None or low < 0:
        most = None if low is None else -low
        negative = one_sign(max(-(high if high is not None else 0), 0), most, mirrored=True)
        found.append(negative and f'"-" {negative}')
    possible = [one for one in found if one is not None]
    return alternatives(possible) if possible else None


def _natural(low: int, high: int | None) -> str | None:
    """The integers from `low` >= 0 to `high`, without leading zeros."""
    if high is not None and low > high:
        return None
    found = []
    digits = len(str(low))
    while high is None or digits <= len(str(high)):
        first = max(low, 10 ** (digits - 1) if digits > 1 else 0)
        if high is None and first > low:
            # Everything longer than `low` itself.
            if digits <= _MOST_DIGITS:
                found.append(f"[1-9] [0-9]{{{digits - 1},{_MOST_DIGITS - 1}}}")
            break
        last = 10**digits - 1 if high is None else min(high, 10**digits - 1)
        found.append(_same_length(str(first), str(last)))
        digits += 1
    return alternatives(found)


def _same_length(low: str, high: str) -> str:
    """The digit strings from `low` to `high`, which are equally long."""
    if not low:
        return '""'
    rest = len(low) - 1
    if low == "0" * len(low) and high == "9" * len(high):
        return " ".join(["[0-9]"] * len(low)) if rest < 3 else f"[0-9]{{{len(low)}}}"
    if low[0] == high[0]:
        return f'"{low[0]}" {_same_length(low[1:], high[1:])}' if rest else f'"{low}"'
    if not rest:
        return f"[{low}-{high}]"
    first, last = int(low[0]), int(high[0])
    found = []
    if low[1:] != "0" * rest:
        found.append(f'"{first}" {_same_length(low[1:], "9" * rest)}')
        first += 1
    tail = None
    if high[1:] != "9" * rest:
        tail = f'"{last}" {_same_length("0" * rest, high[1:])}'
        last -= 1
    if first <= last:
        found.append(f"[{first}-{last}] {_same_length('0' * rest, '9' * rest)}")
    if tail is not None:
        found.append(tail)
    return alternatives(found)
