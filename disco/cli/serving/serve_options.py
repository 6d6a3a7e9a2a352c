"""The options of `disco serve`, and which of them belong together."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from disco.cli.serving.serve_setup import KEY_VARIABLE
from disco.client.request_options import DEFAULT_PRESET
from disco.errors import ConfigurationError

__all__ = ["BACKUP_KEY_VARIABLE", "TIER_KEY_VARIABLE", "add_options", "settle_options"]

BACKUP_KEY_VARIABLE: Final = "DISCO_BACKUP_KEY"
TIER_KEY_VARIABLE: Final = "DISCO_TIER_KEY"
MAX_ANSWERS: Final = 256
MAX_ROUNDS: Final = 1024  # of these, most wait for the model; two windows of an answer may be on their way
SLOTS: Final = 8
CONTEXT_TOKENS: Final = 4096
# What is not given is None, so that an option that does not fit is noticed. Then these hold.
_LOCAL: Final = {"local": "smollm2-135m", "isolation": None, "runtime": None}
_NO_LOCAL: Final = {**_LOCAL, "local": "none"}
_OF_SLOTS: Final = {"slots": SLOTS, "context": None, "threads": None}
_USUAL: Final[dict[str, Any]] = {
    "preset": DEFAULT_PRESET,
    "power": "auto",
    "prompt_cache_private": False,
    "host": "127.0.0.1",
    "port": 8642,
    "no_attach": False,
    "max_body": 32.0,
    "grace": 10.0,
    "allow_origin": [],
    "allow_host": [],
    "tier": [],
    "backup": [],
    "no_page": False,
    "page_text": False,
    "log_level": "warning",
    # Only a file says these.
    "models": {},
    "default": None,
    "budget": None,
    "tiers": [],
    "backups": [],
    "page_answers": 50,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco serve`."""
    parser.description = (
        "Serves both models at one base URL. The server behind disco is the one in OPENAI_API_KEY and "
        f"OPENAI_BASE_URL. Without a key, only the local model answers. With --verify, the local model also "
        f"checks what other devices draft. With --layers, it computes for devices the "
        f"layers that they lack. If a key is set in {KEY_VARIABLE} or --key-file, callers must send it."
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="take the options from a TOML file, which can also name several models; options given here replace those "
        "of the file; see docs/how-to/serve-config.md",
    )
    parser.add_argument(
        "--example-config", action="store_true", help="print an example of such a file, and end"
    )
    parser.add_argument(
        "--local",
        help="local model: a name, a GGUF file, hf:owner/repo/file, an endpoint of an installed package "
        "(KIND:ARGUMENT, see `disco plugins`), or `none` (default: smollm2-135m; with --layers "
        "none)",
    )
    parser.add_argument(
        "--isolation",
        choices=("thread", "process"),
        help="where the local model runs; a separate process may crash without harm to this one (default: thread)",
    )
    parser.add_argument(
        "--runtime",
        choices=("auto", "compiled", "prebuilt"),
        help="what runs the local model, as for chat (default: auto)",
    )
    parser.add_argument("--preset", "--policy", help=f"a preset's name or file (default: {DEFAULT_PRESET})")
    parser.add_argument(
        "--shadow",
        metavar="PRESET",
        help="record, with --record, what this other preset would have done, without doing it; see "
        "docs/how-to/shadow.md",
    )
    parser.add_argument(
        "--tier",
        nargs="+",
        action="append",
        default=[],
        metavar=("URL MODEL", "OPTION=VALUE"),
        help="a model between the local one and the server; may be given several times, from the smallest to the best. "
        "In place of URL and MODEL: an endpoint of an installed package, such as 'command:llm -m qwen'. "
        "Options: reach=device, own or any (default); price=IN,OUT in USD per million tokens; name=NAME. Its key, if "
        f"it needs one, is in {TIER_KEY_VARIABLE}_1 (_2 for the second, ...), or in {TIER_KEY_VARIABLE} for all tiers",
    )
    parser.add_argument(
        "--power",
        choices=("auto", "off"),
        help="off: the battery, the load and the network of this machine change nothing; see docs/how-to/power.md "
        "(default: auto, where psutil is installed)",
    )
    parser.add_argument(
        "--histories",
        metavar="FILE",
        help="keep the scores that a cascade's thresholds are learnt from, numbers only, across restarts",
    )
    parser.add_argument(
        "--state",
        metavar="FILE",
        help="keep what is learnt and spent in this file, numbers only, or `off` (default: the user's own state file)",
    )
    parser.add_argument(
        "--prompt-cache",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="save what the local model has read of system prompts and long conversations, so that it need not read "
        "them again after a restart; the files hold texts, as tokens (default folder: the user's folder for caches); "
        "see docs/how-to/warm-start.md",
    )
    parser.add_argument(
        "--prompt-cache-mib", type=int, metavar="MIB", help="most that they take, MiB (default: 512)"
    )
    parser.add_argument(
        "--prompt-cache-private",
        action="store_true",
        default=None,
        help="save prompts, too, that must stay on this machine, such as all those under the preset private",
    )
    parser.add_argument(
        "--backup",
        nargs=2,
        action="append",
        default=[],
        metavar=("URL", "MODEL"),
        help="a further server, used if the first one does not answer; may be given several times. Its key is in "
        f"{BACKUP_KEY_VARIABLE}_1 (_2 for the second, ...), or in {BACKUP_KEY_VARIABLE} for all backups",
    )
    parser.add_argument(
        "--redact",
        metavar="MODULE:FUNCTION",
        help="a Python function that names the parts of each text that no server elsewhere may get, in a module of the "
        "current folder or an installed one; see docs/how-to/redaction.md",
    )
    parser.add_argument(
        "--verify",
        metavar="MODEL",
        help="be a verify server too: check with this model what other devices draft; it is the local model, and takes "
        "the same names as --local; see docs/concepts/speculate.md",
    )
    parser.add_argument(
        "--layers",
        metavar="FILE",
        help="be a layer server too: compute for devices the layers that are in this file, NAME.cloud.gguf as `disco "
        "split cut` makes it; see docs/concepts/split.md",
    )
    parser.add_argument(
        "--slots",
        type=int,
        metavar="N",
        help=f"with --verify or --layers: answers whose caches are kept at the same time (default: {SLOTS})",
    )
    parser.add_argument(
        "--context",
        type=int,
        metavar="TOKENS",
        help="with --verify or --layers: longest prompt and answer together; memory grows with it times the "
        f"slots (default: what the model was trained with, at most {CONTEXT_TOKENS})",
    )
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="with --verify or --layers: threads of llama.cpp (default: all cores but one)",
    )
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on; 0 picks a free one (default: 8642)")
    parser.add_argument(
        "--no-attach",
        action="store_true",
        default=None,
        help="do not let other programs of this user use the local model in place of a copy; see docs/how-to/attach.md",
    )
    parser.add_argument("--no-page", action="store_true", default=None, help="no live page at /")
    parser.add_argument(
        "--page-text",
        action="store_true",
        default=None,
        help="show prompts and answers on the live page; needs a key",
    )
    parser.add_argument("--key-file", metavar="FILE", help="a file that contains only the callers' key")
    parser.add_argument("--key", type=_no_key, help=argparse.SUPPRESS)
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="URL",
        help="origin of a web page that may call it",
    )
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a further host name of this server"
    )
    parser.add_argument(
        "--max-concurrent",
        type=int,
        metavar="N",
        help=f"most answers, and rounds, at the same time (default: {MAX_ANSWERS}; with --verify {MAX_ROUNDS})",
    )
    parser.add_argument("--max-body", type=float, metavar="MIB", help="longest request, MiB (default: 32)")
    parser.add_argument(
        "--grace", type=float, metavar="S", help="time for open answers to end, s (default: 10)"
    )
    parser.add_argument(
        "--record", metavar="FILE", help="append route records, numbers only, for `disco replay` (JSON lines)"
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        help="lowest level of the log on standard error: warning shows failures, info also answers (default: warning)",
    )


def settle_options(arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with the values of the file for what was not given, and the usual ones for the rest.

    What only a file can say is in `models` (by name), `default`, `budget`, `tiers`, `backups`, `page_answers`.

    Raises:
        ConfigurationError: the file has a mistake, options do not go together, or one needs another, or a number is out
            of range.
    """
    values = {name: None if value == [] else value for name, value in vars(arguments).items()}
    if values.get("config") is not None:
        from disco.cli.serving.config_values import config_values  # noqa: PLC0415 - `disco --help` needs no pydantic

        in_file = config_values(Path(arguments.config), values)
        values |= {name: value for name, value in in_file.items() if values.get(name) is None}
    arguments = argparse.Namespace(**values)
    verifies, computes = arguments.verify is not None, arguments.layers is not None
    if verifies and computes:
        raise ConfigurationError(
            "--verify and --layers cannot be used together: they would wait for each other. Start two servers"
        )
    usual: dict[str, Any] = dict(_USUAL)
    if verifies:
        why = (
            "cannot be used with --verify, whose model is also the local one, in this process: leave one out"
        )
        _check_absent(arguments, _LOCAL, why)
    else:
        # Models with names say themselves which of them have a local model.
        usual |= _NO_LOCAL if computes or values.get("models") else _LOCAL
    if verifies or computes:
        usual |= _OF_SLOTS
    else:
        why = "is for a verify server or a layer server: name a model with --verify MODEL or --layers FILE"
        _check_absent(arguments, _OF_SLOTS, why)
    usual["max_concurrent"] = MAX_ROUNDS if verifies else MAX_ANSWERS
    settled = argparse.Namespace(**vars(arguments))
    for name, value in usual.items():
        if getattr(arguments, name, None) is None:
            setattr(settled, name, value)
    for name in _OF_SLOTS:
        value = getattr(settled, name)
        if value is not None and value < 1:
            raise ConfigurationError(f"--{name} must be at least 1, not {value}")
    for name, most, unit in (("max_body", 2**20, "MiB"), ("grace", 1e9, "s")):
        if not 0 <= getattr(settled, name) <= most:
            raise ConfigurationError(f"--{name.replace('_', '-')} must be 0 to {most:g} {unit}")
    return settled


def _check_absent(arguments: argparse.Namespace, names: Iterable[str], why: str) -> None:
    for name in names:
        if getattr(arguments, name) is not None:
            raise ConfigurationError(f"--{name} {why}")


def _no_key(text: str) -> str:
    del text  # the message must not repeat the key
    raise argparse.ArgumentTypeError(
        "every user of this machine can read a command line; put the key into the environment "
        f"variable {KEY_VARIABLE}, or into a file named by --key-file"
    )
