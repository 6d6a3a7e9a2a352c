"""What is possible now: what the findings mean together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from disco.cli.doctor.finding import Facts, Finding, Setup, command
from disco.client.endpoint_catalog.local_servers import is_address

__all__ = ["Summary", "summarise"]


@dataclass(frozen=True, slots=True)
class Summary:
    """What can be done, and what cannot, each as the rest of a sentence; and whether all is well.

    Attributes:
        can: behind "You can".
        cannot: behind "You cannot yet".
        status: the exit status: 0 where no check found a fault, and a model can answer or was not asked; else 1.
    """

    can: tuple[str, ...]
    cannot: tuple[str, ...]
    status: int


def summarise(setup: Setup, findings: Sequence[Finding], facts: Facts) -> Summary:
    """Return what is possible now."""
    verdicts: dict[str, str] = {}
    for one in findings:
        if verdicts.get(one.subject) != "does not":
            verdicts[one.subject] = one.verdict

    def is_fine(subject: str) -> bool:
        return verdicts.get(subject) == "works"

    fault = "does not" in verdicts.values()
    here = is_fine("local model") or is_fine("local server") or facts.served_port is not None
    answers = is_fine("answer") or (facts.is_key_accepted is True and verdicts.get("model") != "does not")
    server = answers and verdicts.get("answer") != "does not"
    untried = facts.models is not None and facts.is_key_accepted is None and not fault
    can: list[str] = []
    cannot: list[str] = []
    settled = is_fine("preset") and (verdicts.get("settings") != "does not" or not (here or server))
    chosen = ["--local", setup.shown_local] if setup.local not in (None, "smollm2-135m") else []
    chosen += ["--runtime", setup.runtime] if setup.runtime != "auto" else []
    chat = command("chat", *chosen)
    if here and settled:
        can.append(f"get answers from this machine ({chat})")
    elif not here:
        is_named = setup.local is not None and not is_address(setup.local)  # an address may hold a password
        named = f" with --local {setup.shown_local}" if is_named else ""
        cannot.append(f"get answers from this machine{named}")
    if not here and facts.local_address:
        can.append(
            f"use the model of a server on this machine ({command('chat', '--local', facts.local_address)})"
        )
    if server:
        can.append(f"get answers from the server ({setup.model})")
    elif untried:
        cannot.append("be sure of the server, which was not asked a question (disco doctor --ask)")
    else:
        cannot.append("get answers from the server")
    if here and server:
        can.append(
            "race both, fail over from one to the other, and move answers from the server to this machine"
        )
        certain = " for certain" if facts.continues is None else ""
        (can if facts.continues else cannot).append(f"move running answers to the server{certain}")
    elif here or server:
        cannot.append("race two models, or go on with one when the other fails")
    if not settled:
        cannot.append(f"use the preset {setup.preset}")
    if verdicts.get("state file") != "works":
        cannot.append("keep what is learnt and spent between two programs")
    return Summary(tuple(can), tuple(cannot), 1 if fault or not (here or server or untried) else 0)
