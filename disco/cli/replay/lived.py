"""`disco replay routes.jsonl --as-recorded`: a recording replayed as it was made, beside what was lived."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from disco.amounts import plural
from disco.cli.console import Screen
from disco.cli.output_files import check_output, screen_beside, write
from disco.cli.replay.policies import add_pair, add_seeds
from disco.cli.replay.verdicts import add_histories
from disco.cli.shared_options import add_figures, add_recording, check_least
from disco.dispatch import Preset, available_presets, load_preset
from disco.errors import ConfigurationError
from disco.replay.pairs import load_pair
from disco.replay.report.findings import number
from disco.replay.stations.as_live import AsLive
from disco.replay.stations.predicted import Beside, predict
from disco.replay.stations.recorded_stations import Recording, read_halves, read_recording
from disco.replay.stations.replayed_presets import kept_histories

__all__ = ["add_of_lived", "replay_as_recorded"]

FEW = 100  # answers below which a P99 is the longest of them


def add_of_lived(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco replay FILE --as-recorded`."""
    add_recording(parser)
    parser.add_argument(
        "--as-recorded",
        action="store_true",
        required=True,
        help="follow the preset that was recorded, and print the errors beside what was lived",
    )
    parser.add_argument(
        "--fit-on",
        metavar="S|FILE",
        help="copy no measured time; draw all from the first share S of the recording, which predicts the rest (0.5), "
        "or from another recording",
    )
    parser.add_argument(
        "--preset",
        action="append",
        metavar="FILE",
        help="the preset that was recorded, where disco does not ship it; may be given several times",
    )
    add_pair(parser, "let the device draft for the server, for a preset with [speculate]")
    add_histories(parser)
    add_seeds(parser, default=10)
    add_figures(parser)
    parser.set_defaults(run=replay_as_recorded)


def replay_as_recorded(screen: Screen, arguments: argparse.Namespace) -> int:
    """Replay a recording under its own presets, and print what comes beside what was; return the exit status.

    Raises:
        ConfigurationError: the file is no recording, or lacks what a replay of it needs.
    """
    check_least(arguments, seeds=1)
    check_output(arguments, json=arguments.json)
    screen = screen_beside(screen, arguments.json)
    path = Path(arguments.trace)
    pair = None if arguments.pair is None else load_pair(Path(arguments.pair))
    histories = None if arguments.histories is None else kept_histories(Path(arguments.histories))
    given = {preset.name: preset for preset in map(load_preset, arguments.preset or ())}
    with screen.step(f"Reading {path.name}"):
        recording, fitted_on, how = _read(path, arguments.fit_on)
    names = list(dict.fromkeys(one.preset for one in recording.answers))
    presets = [_preset(name, given, path) for name in names]
    for preset in presets:
        AsLive(preset)  # reports what cannot be replayed before minutes of work
    found = []
    for preset in presets:
        with screen.bar(f"Replaying {preset.name}") as tell:
            found.append(
                predict(
                    recording.of_preset(preset.name),
                    preset,
                    fitted_on=fitted_on,
                    seeds=arguments.seeds,
                    pair=pair,
                    histories=histories,
                    progress=tell,
                )
            )
    notes = [how, *_notes(recording, fitted_on, presets, drafts=pair is not None)]
    for note in notes:
        screen.line(note, style="dim")
    for one in found:
        screen.table(
            f"{path.name} · {one.preset} · {plural(one.answers, 'answer')} · per answer, but for TTFT",
            ["figure", "lived", "predicted", "error", "95 % interval"],
            [_row(figure) for figure in one.figures if _is_shown(figure)],
        )
    screen.line(f"Not modelled: {_not_modelled(recording)}.")
    if arguments.json is not None:
        figures = {"notes": notes, "presets": [one.to_dict() for one in found]}
        write(screen, arguments.json, json.dumps(figures, indent=2, ensure_ascii=False), "Figures")
    return 0


def _read(path: Path, fit_on: str | None) -> tuple[Recording, Recording | None, str]:
    """Return the answers to replay, what their times are fitted on, and a sentence about that.

    Raises:
        ConfigurationError: no recording, or no share and no recording to fit on.
    """
    if fit_on is None:
        return (
            read_recording(path),
            None,
            (
                "Times that were measured in an answer are replayed in it, so this says what replay leaves out. "
                "--fit-on 0.5 predicts the second half from the first."
            ),
        )
    try:
        share = float(fit_on)
    except ValueError:
        other = read_recording(Path(fit_on))
        return (
            read_recording(path),
            other,
            f"All times are drawn from {plural(len(other.answers), 'answer')} of {fit_on}; none is copied.",
        )
    if not 0.0 < share < 1.0:
        raise ConfigurationError(
            f"--fit-on is a share of the recording above 0 and below 1, or another recording, not {fit_on}"
        )
    first, rest = read_halves(path, share)
    count = plural(len(first.answers), "answer")
    return rest, first, f"All times are drawn from the first {count}; those behind them are predicted."


def _preset(name: str, given: dict[str, Preset], path: Path) -> Preset:
    """Return the preset of that name.

    Raises:
        ConfigurationError: it is neither given nor shipped.
    """
    if name in given:
        return given[name]
    if name in available_presets():
        return load_preset(name)
    raise ConfigurationError(
        f"{path} was recorded with the preset {name!r}, which disco does not ship; add its file: "
        f"--preset {name}.toml (the file's name, or `name` in it, must be {name!r})"
    )


def _row(one: Beside) -> list[str]:
    error = one.error
    if one.of == "lived":

        def said(value: float) -> str:
            return "-" if math.isnan(value) else f"{value:+.1%}"
    else:

        def said(value: float) -> str:
            return f"{value:+.3f}"

    return [
        one.name,
        number(one.lived),
        number(one.predicted),
        said(error.mean),
        f"{said(error.low)} to {said(error.high)}",
    ]


def _is_shown(one: Beside) -> bool:
    return one.of == "lived" or bool(one.lived or one.predicted)


def _notes(
    recording: Recording, fitted_on: Recording | None, presets: list[Preset], *, drafts: bool
) -> list[str]:
    """Return what a reader must know about the figures."""
    notes = []
    known = fitted_on or recording
    if left_out := recording.left_out.named():
        notes.append(f"Left out: {'; '.join(left_out)}.")
    if unknown := [name for name in recording.candidates if name not in known.times]:
        notes.append(
            f"Left out, because no time to a first token of theirs is recorded: {', '.join(unknown)}."
        )
    notes += known.notes()
    if len(recording.answers) < FEW:
        notes.append(f"A P99 of {plural(len(recording.answers), 'answer')} is the longest of them.")
    if len(presets) > 1:
        notes.append("The answers of each preset are replayed apart: they do not wait for each other.")
    if not drafts and any("speculate" in preset.model_fields_set for preset in presets):
        notes.append(
            "[speculate] has no effect here without --pair FILE, which says how long drafting takes."
        )
    return notes


def _not_modelled(recording: Recording) -> str:
    """Return what a replay leaves out, with how often that happened here where records say so."""
    failed = f"failures ({plural(recording.failed, 'attempt')} here)" if recording.failed else "failures"
    silences = "silences"
    if recording.on_silence:
        silences += f" ({plural(recording.on_silence, 'attempt')} here started on one)"
    return ", ".join(
        (
            failed,
            f"{silences} unless shadow mode recorded them",
            "other users of a server, and endpoints that slow each other down on one machine",
            "what a client still had to learn",
            "loading of models",
            "refined prompts",
            "tools and schemas, whose answers do not move",
            "the machine's battery and load",
        )
    )
