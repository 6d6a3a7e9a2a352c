"""Playback: the buffer between generation and the reader, its pace, text boundaries and metrics."""

from disco.playback.buffer import Playback
from disco.playback.pace import Pace
from disco.playback.sentence_playback import SentencePlayback, playback_for
from disco.playback.sentences import last_sentence_end
from disco.playback.text_boundaries import last_word_start

__all__ = [
    "Pace",
    "Playback",
    "SentencePlayback",
    "last_sentence_end",
    "last_word_start",
    "playback_for",
]
