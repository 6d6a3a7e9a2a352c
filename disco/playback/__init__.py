"""Playback: the buffer between generation and the reader, its pace, text boundaries and metrics."""

from disco.playback.boundaries import last_word_start
from disco.playback.buffer import Playback
from disco.playback.pace import Pace

__all__ = ["Pace", "Playback", "last_word_start"]
