"""Compares disco's declarations of llama.cpp's C interface with the headers of a version of xllamacpp.

    python tests/endpoints/llamacpp/compare_header.py 2026.10.11549

The headers come from the version's source archive on PyPI; the path of an archive that is here does as well. Prints
each structure and function that is declared otherwise. Exit status 1 if there is one.
"""

from __future__ import annotations

import ctypes
import io
import json
import re
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from disco.endpoints.llamacpp.model.declarations import FUNCTIONS, STRUCTURES

HEADERS = ("include/llama.h", "ggml/include/ggml.h", "ggml/include/ggml-backend.h")
NUMBERS = {
    "bool": ctypes.c_bool,
    "float": ctypes.c_float,
    "int8_t": ctypes.c_int8,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "llama_token": ctypes.c_int32,
    "llama_pos": ctypes.c_int32,
    "llama_seq_id": ctypes.c_int32,
}
POINTERS = {"llama_memory_t"}  # names of types that are pointers, besides the callbacks


def archive_of(version: str) -> bytes:
    """The source archive of a version, or the one at a path."""
    if Path(version).exists():
        return Path(version).read_bytes()
    with urllib.request.urlopen(f"https://pypi.org/pypi/xllamacpp/{version}/json") as page:
        files = json.load(page)["urls"]
    (address,) = (file["url"] for file in files if file["packagetype"] == "sdist")
    with urllib.request.urlopen(address) as page:
        return page.read()


def headers_in(archive: bytes) -> str:
    """The headers, without comments."""
    found = []
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if "/thirdparty/llama.cpp/" in member.name and member.name.endswith(HEADERS):
                file = tar.extractfile(member)
                assert file is not None
                found.append(file.read().decode())
    assert len(found) == len(HEADERS), "the archive has not the headers where they were"
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", "\n".join(found), flags=re.DOTALL)


def kind(text: str) -> str:
    """What a C type is for ctypes: the name of a number, "pointer", or a structure's name."""
    words = [word for word in re.findall(r"\w+|\*", text) if word not in ("const", "struct", "enum")]
    if "*" in words or words[0] in POINTERS or words[0].endswith("callback"):
        return "pointer"
    if words[0] in STRUCTURES or words[0] == "void":
        return words[0]
    return NUMBERS[words[0]].__name__ if words[0] in NUMBERS else "c_int"  # an enumeration


def ours(type_: Any) -> str:
    """The same of a declaration."""
    if type_ is None:
        return "void"
    names = [name for name, structure in STRUCTURES.items() if structure is type_]
    if names:
        return names[0]
    is_pointer = hasattr(type_, "contents") or hasattr(type_, "argtypes")
    return "pointer" if is_pointer or type_ in (ctypes.c_void_p, ctypes.c_char_p) else type_.__name__


def fields(headers: str, name: str) -> list[tuple[str, str]]:
    """The fields of a structure, and what they are."""
    body = re.search(rf"struct {name} {{(.*?)}}", headers, re.DOTALL)
    if body is None:
        return []
    declared = [" ".join(one.split()) for one in body[1].split(";") if one.strip()]
    parts = [re.fullmatch(r"(.*?)(\w+)", one) for one in declared]
    return [(part[2], kind(part[1])) for part in parts if part is not None]


def signature(headers: str, name: str) -> list[str] | None:
    """The result of a function and its arguments; None where there is no such function."""
    found = re.search(rf"(?:LLAMA|GGML)_API([^;()]*?)\b{name}\s*\(([^;]*?)\)\s*;", headers, re.DOTALL)
    if found is None:
        return None
    arguments = [one for one in found[2].split(",") if one.strip() not in ("", "void")]
    return [kind(found[1]), *(kind(re.sub(r"\w+\s*$", "", one)) for one in arguments)]


def differences(headers: str) -> Iterator[str]:
    """What is declared otherwise than in the headers."""
    for name, structure in STRUCTURES.items():
        theirs = fields(headers, name)
        own = [(field, ours(type_)) for field, type_, *_ in structure._fields_]
        if theirs != own:
            changed = [f"+ {one}" for one in theirs if one not in own]
            changed += [f"- {one}" for one in own if one not in theirs]
            yield f"{name}: {changed or 'another order'}"
    for name, declared in FUNCTIONS.items():
        theirs_are = signature(headers, name)
        if theirs_are != [ours(type_) for type_ in declared]:
            yield f"{name}: {theirs_are}, here {[ours(type_) for type_ in declared]}"


if __name__ == "__main__":
    found = list(differences(headers_in(archive_of(sys.argv[1]))))
    print("\n".join(found) or "The declarations fit.")
    sys.exit(bool(found))
