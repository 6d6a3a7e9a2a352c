"""A plugin for pytest: our classes in the place of the SDK's, before the SDK's tests import them.

Settings come as environment variables, because they must be known when the plugin is imported, in every process:

- `DISCO_SDK_ARM`: `plain` (the SDK's own classes), `server` (ours, with the server alone), `local` (ours, with a model
  on this machine behind the server);
- `DISCO_SDK_RESULT`: the file that the outcomes are written to, as JSON;
- `DISCO_SDK_ONLY`: a file of test names, the only ones to run; empty: all.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import pkgutil
import sys
import time
from pathlib import Path
from typing import Any

import openai
import openai.lib.azure
import pytest

ARM = os.environ["DISCO_SDK_ARM"]
MODEL = "smollm2-135m"  # as a user names it; it is loaded when an answer is first started on it
OURS = {
    "OpenAI": "Disco",
    "AsyncOpenAI": "AsyncDisco",
    "AzureOpenAI": "AzureDisco",
    "AsyncAzureOpenAI": "AsyncAzureDisco",
}
ALIASES = {"OpenAI": "Client", "AsyncOpenAI": "AsyncClient"}
DEADLINE_S = 5.0  # of an answer with a model behind; the SDK's mocks answer at once
REPORT_S = 15.0  # between two reports of progress


def put_in() -> None:
    """Replace the SDK's classes wherever its package names them."""
    import disco

    # Modules take the SDK's classes by name, some of them only when first needed: they must not take ours.
    for module in pkgutil.walk_packages(disco.__path__, "disco."):
        if module.name.startswith(("disco.client.", "disco.endpoints.")):
            importlib.import_module(module.name)
    for name, our_name in OURS.items():
        kind = getattr(disco, our_name, None)
        if kind is None:
            continue
        more = {"__init__": with_local_model(kind)} if ARM == "local" else {}
        # Under the SDK's name, which stands in the names of tests that take the class as a parameter.
        kind = type(name, (kind,), {"__module__": kind.__module__, **more})
        home = importlib.import_module("openai.lib.azure" if "Azure" in name else "openai._client")
        for place in (openai, home):
            for known in (name, ALIASES.get(name)):
                if known is not None:
                    setattr(place, known, kind)


def with_local_model(kind: type) -> Any:
    """Return the constructor of a class with a model on this machine behind the server, and otherwise unchanged.

    The server is asked first, and the model takes over when the server fails. (`balanced` would answer short prompts
    on this machine.) The deadline ends such an answer, which a small model may go on writing for minutes.
    """
    from disco.dispatch import Preset

    behind = {
        "local": MODEL,
        "preset": Preset(name="behind", dispatch={"policy": "server_only"}),
        "continuation": "none",  # their mocks count requests, and a probe would be one
        "default_options": {"deadline_s": DEADLINE_S},
    }

    @functools.wraps(kind.__init__)
    def init(self: Any, *given: Any, **options: Any) -> None:
        kind.__init__(self, *given, **(behind | options))

    return init


if ARM != "plain":
    put_in()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Note whether the test is of the asynchronous client; the note travels with the report."""
    of_async = "async" in item.nodeid.lower() or inspect.iscoroutinefunction(getattr(item, "function", None))
    item.user_properties.append(("kind", "async" if of_async else "sync"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests that are not asked for."""
    if os.environ["DISCO_SDK_ONLY"]:
        asked = set(Path(os.environ["DISCO_SDK_ONLY"]).read_text().splitlines())
        items[:] = [item for item in items if item.nodeid in asked]


class Outcomes:
    """The outcome of each test, what the failed ones say, and progress.

    Mutable: all fields.
    """

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.errors: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.reported_at = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        self.kinds[name] = dict(report.user_properties)["kind"]
        if report.failed:
            self.outcomes[name] = "failed"
            crash = getattr(report.longrepr, "reprcrash", None)
            self.errors.setdefault(name, str(crash.message if crash else report.longrepr).strip())
        elif report.when == "call" or report.skipped:
            self.outcomes.setdefault(name, report.outcome)
        if time.monotonic() > self.reported_at + REPORT_S:
            self.say()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.outcomes[report.nodeid] = "failed"
            self.kinds[report.nodeid] = "sync"
            self.errors[report.nodeid] = str(report.longrepr).strip()

    def pytest_sessionfinish(self) -> None:
        self.say()
        made = {"outcomes": self.outcomes, "errors": self.errors, "kinds": self.kinds}
        Path(os.environ["DISCO_SDK_RESULT"]).write_text(json.dumps(made))

    def say(self) -> None:
        """Report progress on the stream that is not pytest's."""
        self.reported_at = time.monotonic()
        failed = list(self.outcomes.values()).count("failed")
        print(f"  {len(self.outcomes):,} tests, {failed:,} failed", file=sys.stderr, flush=True)


def pytest_configure(config: pytest.Config) -> None:
    """Collect outcomes in the process that the others report to."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes())
