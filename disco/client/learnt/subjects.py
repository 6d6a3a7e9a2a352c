"""Whose observations these are: names by which the state file knows endpoints, without credentials."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from disco.state.observations import Subject

if TYPE_CHECKING:
    from disco.client.endpoint_catalog.catalog import CatalogEntry

__all__ = ["address_text", "public_url", "subject_of"]

_USUAL_PATHS = frozenset({"", "/", "/v1", "/v1/"})


def subject_of(member: CatalogEntry, model: str) -> Subject:
    """Return whose observations those of an endpoint are, for a request that names `model`.

    Those of a model that disco runs belong to its file and settings, not only to the name "device". Those of a server
    on the user's machine belong to the model that it has, once it has said which.
    """
    endpoint = member.endpoint
    where = address_text(member.address)
    named = getattr(endpoint, "state_name", None)
    if named is None and where and not member.is_device:
        named = member.asked_for(model)
    if named is None:
        named = getattr(endpoint, "profile_name", None)
    return Subject(member.name, where, type(endpoint).__name__ if named is None else str(named))


def address_text(address: object) -> str:
    """Return an endpoint's address, a pair of host and port, as "host:port"; "" where it has none.

    A process that disco starts for a model has none either: port 0 stands for whatever it listens on.
    """
    if isinstance(address, tuple) and len(address) == 2 and address[1] != 0:
        return f"{address[0]}:{address[1]}"
    return ""


def public_url(base_url: str) -> str:
    """Return a base_url without user, password and query; an unusual path, which may hold a key, as a checksum."""
    parts = urlsplit(base_url)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    path = (
        parts.path
        if parts.path in _USUAL_PATHS
        else "/" + hashlib.sha256(parts.path.encode()).hexdigest()[:16]
    )
    return f"{parts.scheme}://{parts.hostname}:{port}{path.rstrip('/')}"
