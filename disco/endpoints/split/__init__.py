"""A model cut in two: its first layers and its head on this device, the layers between them on a layer server."""
