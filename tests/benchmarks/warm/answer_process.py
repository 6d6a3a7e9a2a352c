"""One start of a program with a local model, in a process of its own: it asks a question and reports times as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

LAUNCHED_AT, *_ARGUMENTS = sys.argv[1:]


def of_process(number: int | None) -> float:
    """Return the processor time of another process so far, s; 0 where there is none, or no /proc."""
    stat = Path(f"/proc/{number}/stat")
    if number is None or not stat.exists():
        return 0.0
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Ask the question, with what the arguments (JSON) say."""
    given = json.loads(_ARGUMENTS[0])
    from disco import Disco, Timeouts  # their import is part of the start

    cache = given["prompt_cache"] or False
    how = {"local": given["local"], "state": False}
    patient = Timeouts(first_content_s=None, gap_s=None)  # the machine may be busy
    with Disco(**how, prompt_cache=cache, timeouts=patient) as client:
        asked_at, cpu_before_s = time.time(), time.process_time()
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
                cpu_s = time.process_time() - cpu_before_s + of_process(client.router.local.process_id)
            text += piece or ""
        (attempt,) = stream.route.attempts
        said_at = time.time()
    closed_at = time.time()
    report = {
        "first_word_s": first_at - asked_at,
        "from_launch_s": first_at - float(LAUNCHED_AT),
        "cpu_s": cpu_s,
        "closing_s": closed_at - said_at,
        "prompt_tokens": attempt.prompt_tokens,
        "cached_tokens": attempt.cached_tokens,
        "text": text,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
