"""Whether a client uses the model of a running `disco serve` in place of a copy of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from disco.errors import ConfigurationError

if TYPE_CHECKING:
    from disco.endpoints.attached.announcement import Announcement, ServedModel
    from disco.endpoints.contract import Endpoint
    from disco.endpoints.host import HostEndpoint

__all__ = ["Attach", "attaching"]

Attach = Literal["auto"] | bool
"""`AsyncDisco(attach=...)`."""


def attaching(own: HostEndpoint, attach: Attach, *, drafts: bool) -> Endpoint:
    """Return the endpoint that uses a served model where one fits and `own` where none does; `own` if none may.

    Args:
        own: the model that this program would load.
        attach: "auto": a model of the same file with at least as long a context may take its place. True: so may one of
            the same file or name, so that the file need not be here. False: none may.
        drafts: whether the model is to draft for a server that verifies, which only the engine can.

    Raises:
        ConfigurationError: `attach` has another value, or what is asked for is not possible.
    """
    if attach not in ("auto", True, False):
        raise ConfigurationError(f'attach must be "auto", True or False, not {attach!r}.')
    if attach is False:
        return own
    from disco.endpoints.attached import AttachingEndpoint  # noqa: PLC0415 - only if it is used
    from disco.endpoints.attached.announcement import VARIABLE, serve_folder  # noqa: PLC0415 - as above

    folder = serve_folder()
    if folder is None:
        if attach is True:
            raise ConfigurationError(
                f"attach=True, but the environment variable {VARIABLE} switches it off. Unset it, or leave attach out."
            )
        return own

    def fits(served: Announcement) -> bool:
        model = served.model
        if drafts and served.program != "engine":
            return False
        if attach is True and model.name == own.full_name:
            return True
        return model.fingerprint == own.fingerprint and (attach is True or has_room(model))

    def has_room(model: ServedModel) -> bool:
        # Else requests that the own model can take would be refused.
        needed = own.least_context_tokens
        return needed is None or model.context_tokens is None or model.context_tokens >= needed

    return AttachingEndpoint(own, fits=fits, folder=folder)
