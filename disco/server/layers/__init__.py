"""The HTTP side of a layer server: devices' hidden states in, those behind the cloud's layers out."""

from disco.server.layers.layer_host import LayerHost

__all__ = ["LayerHost"]
