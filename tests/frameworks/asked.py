"""What is asked through every framework; `weather_server` knows the answers."""

from __future__ import annotations

from pydantic import BaseModel

ASKED = "How is the weather in Paris?"


class Place(BaseModel):
    """A city."""

    city: str
    country: str


PARIS = Place(city="Paris", country="France")


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}"
