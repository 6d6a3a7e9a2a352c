"""A file of questions on paragraphs, as SQuAD has them, and its content."""

from __future__ import annotations

import json
from pathlib import Path

PARAGRAPHS = [
    (
        "The mill at Orrin ground rye. It burned down in 1802.",
        ["What did the mill grind?", "When did it burn?"],
    ),
    ("The ferry crosses the lake twice a day.", ["How often does the ferry cross the lake?"]),
]
ANSWERS = ["rye", "1802", "twice a day"]


def write_questions(path: Path) -> Path:
    """Write the file, with an answer for each question."""
    answers = iter(ANSWERS)
    paragraphs = [
        {"context": text, "qas": [{"question": q, "answers": [{"text": next(answers)}]} for q in questions]}
        for text, questions in PARAGRAPHS
    ]
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return path
