"""Mistakes that a type checker must find, each on a line that ends in `# wrong`. Never run."""

from __future__ import annotations

import openai

import disco
from disco import AsyncAzureDisco, AsyncDisco, AzureDisco, Disco, Timeouts
from disco.endpoints.continuation import Continuation
from disco.session.records.route_record import RouteRecord


def rename(route: RouteRecord) -> None:
    route.preset = "x"  # wrong
    Timeouts().gap_s = 3.0  # wrong


Timeouts(gap="3")  # wrong
Continuation(method="flag")  # wrong
AsyncDisco(price=0.5)  # wrong
AsyncDisco(timeouts=3.0)  # wrong
AsyncDisco("smollm2-135m")  # wrong

Disco(preset="blanced")  # wrong
AsyncDisco(preset="blanced")  # wrong
AzureDisco(preset="blanced")  # wrong
AsyncAzureDisco(preset="blanced")  # wrong
AsyncDisco(preset="mine.toml")  # wrong
AsyncDisco(shadow="fats")  # wrong
AzureDisco(prest="fast")  # wrong
AsyncDisco(budget={"dollars": 5})  # wrong
AzureDisco(budget={"usd": "5", "window_s": 60.0})  # wrong
Disco(budget=5)  # wrong
Disco(budget={"usd": 5, "per": "fortnight"})  # wrong
Disco(default_options={"prest": "fast"})  # wrong
AsyncAzureDisco(default_options={"preset": "blanced"})  # wrong
disco.Options(prest="fast")  # wrong
disco.Options(pace_tps="fast")  # wrong
own: disco.Options = {"prest": 1}  # wrong
disco.evidence("an error")  # wrong


def caught(error: openai.OpenAIError, client: Disco) -> None:
    print(disco.evidence(error).route.winner)  # wrong
    disco.evidence(error).partial_text = ""  # wrong
    print(disco.route_of(client).winer)  # wrong
