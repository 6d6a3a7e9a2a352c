"""One start of a program with a local model, in a process of its own: it asks a question and reports times as JSON."""

from __future__ import annotations

import json
import sys
import time

LAUNCHED_AT, *_ARGUMENTS = sys.argv[1:]


def main() -> None:
    """Ask the question, with what the arguments (JSON) say."""
    given = json.loads(_ARGUMENTS[0])
    from disco import Disco, Timeouts  # their import is part of the start

    cache = given["prompt_cache"] or False
    how = {"local": given["local"], "isolation": given["isolation"], "state": False}
    patient = Timeouts(first_content_s=None, gap_s=None)  # the machine may be busy
    with Disco(**how, prompt_cache=cache, timeouts=patient) as client:
        asked_at = time.time()
        stream = client.chat.completions.create(
            model="any",
            messages=given["messages"],
            stream=True,
            max_tokens=8,
            temperature=0,
            extra_body={"disco": {"pace_tps": "off"}},
        )
        first_at, text = None, ""
        for chunk in stream:
            piece = chunk.choices[0].delta.content if chunk.choices else None
            if piece and first_at is None:
                first_at = time.time()
            text += piece or ""
        (attempt,) = stream.route.attempts
        said_at = time.time()
    closed_at = time.time()
    report = {
        "first_word_s": first_at - asked_at,
        "from_launch_s": first_at - float(LAUNCHED_AT),
        "closing_s": closed_at - said_at,
        "prompt_tokens": attempt.prompt_tokens,
        "cached_tokens": attempt.cached_tokens,
        "text": text,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
