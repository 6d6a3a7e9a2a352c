"""What had another name in the version before still works, and says its new name."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path

import pytest

import disco
from disco import AsyncDisco, ConfigurationError
from disco._moved import CLASSES, MODULES

ROOT = Path(disco.__file__).parent


@pytest.mark.parametrize("former", MODULES)
def test_a_module_is_found_under_its_former_name(former):
    assert not (ROOT / f"{former.replace('.', '/')}.py").exists()
    if MODULES[former].endswith("child_main"):
        return  # a program, which runs when it is imported
    with pytest.warns(DeprecationWarning, match=rf"disco\.{MODULES[former]}"):
        moved = importlib.reload(importlib.import_module(f"disco.{former}"))
    today = importlib.import_module(f"disco.{MODULES[former]}")
    names = {name: name for name in getattr(today, "__all__", ())}
    for old, new in (names | CLASSES.get(MODULES[former], {})).items():
        assert getattr(moved, old) is getattr(today, new)


def test_a_class_is_found_under_its_former_name():
    for module in ("plan", "dispatch", "telemetry", "endpoints.continuation"):
        today = importlib.import_module(f"disco.{module}")
        for old, new in CLASSES[module].items():
            with pytest.warns(DeprecationWarning, match=new):
                assert getattr(today, old) is getattr(today, new)
        assert not hasattr(today, "nonsense")


def test_policy_is_the_former_name_of_preset():
    with warnings.catch_warnings(action="error"):
        client = AsyncDisco(local="smollm2-135m", policy="private")
    assert client.router.preset.name == "private"
    assert client.with_options(default_options={"policy": "cheap"}).default_options.preset == "cheap"
    with pytest.raises(ConfigurationError, match="preset only"):
        AsyncDisco(local="smollm2-135m", preset="cheap", policy="private")
    with pytest.raises(ConfigurationError, match='"preset" only'):
        client.with_options(default_options={"policy": "cheap", "preset": "cheap"})
