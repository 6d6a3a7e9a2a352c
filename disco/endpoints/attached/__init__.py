"""The model of a running `disco serve` of the same user, in place of a copy in this program."""

from disco.endpoints.attached.attaching_endpoint import AttachingEndpoint

__all__ = ["AttachingEndpoint"]
