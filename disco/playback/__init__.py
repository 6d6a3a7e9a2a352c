"""Playback: the buffer between generation and the reader, its pace, text boundaries and metrics."""

from disco.playback.boundaries import complete_until, last_word_start
from disco.playback.buffer import Pace, Playback

__all__ = ["Pace", "Playback", "complete_until", "last_word_start"]
