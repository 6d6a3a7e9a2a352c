"""The job that drafts is given a model that only counts, unless a test asks for the real one."""

import pytest

from disco.endpoints.llamacpp.drafting import draft_job
from tests.endpoints.llamacpp.drafting.counting_model import Model, Sampler


@pytest.fixture
def counting(monkeypatch):
    """The sampler of the counting model, in the job's module."""
    monkeypatch.setattr(draft_job, "DraftSampler", Sampler)
    for of, name, value in ((Model, "special", {}), (Model, "sure", {}), (Sampler, "open", set())):
        monkeypatch.setattr(of, name, value, raising=False)
