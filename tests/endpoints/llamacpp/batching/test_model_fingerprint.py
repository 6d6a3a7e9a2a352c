"""A model is known by its file and its template."""

from __future__ import annotations

import os

from disco.endpoints.llamacpp.batching.model_fingerprint import model_fingerprint


def test_any_change_of_the_weights_or_the_template_shows(tmp_path):
    weights = bytearray(os.urandom(2_000_000))
    path = tmp_path / "model.gguf"

    def found(template=None):
        path.write_bytes(weights)
        return model_fingerprint(path, template)

    first = found()
    assert first == found()
    assert len(first) == 32
    others = {found("chatml")}
    weights[100] ^= 1  # its metadata
    others.add(found())
    weights[1_000_000:] = os.urandom(1_000_000)  # trained further
    others.add(found())
    weights.append(0)
    others.add(found())
    assert len(others | {first}) == 5


def test_a_small_file_has_one_too(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"")
    assert len(model_fingerprint(path, None)) == 32
