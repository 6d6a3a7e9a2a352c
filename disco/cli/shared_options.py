"""Options of more than one command, each declared once."""

from __future__ import annotations

import argparse
from typing import Final

from disco.client.request_options import DEFAULT_PRESET
from disco.errors import ConfigurationError
from disco.profiles import Price

__all__ = [
    "LOCAL_MODEL",
    "RECORD",
    "WHOLE_MODEL",
    "add_context",
    "add_figures",
    "add_json",
    "add_key_file",
    "add_local",
    "add_lora",
    "add_preset",
    "add_price",
    "add_prompts",
    "add_record",
    "add_recording",
    "add_runtime",
    "add_server_model",
    "add_state",
    "add_threads",
    "check_least",
    "option",
    "parse_price",
]

LOCAL_MODEL: Final = "smollm2-135m"
RECORD: Final = "append route records, numbers only, for `disco show` and `disco replay` (JSON lines)"
WHOLE_MODEL: Final = (
    "a name, a GGUF file, hf:owner/repo/file, or one of these with @TYPE (@Q8_0: requantised)"
)


def add_preset(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses a preset."""
    parser.add_argument(
        "--preset", default=DEFAULT_PRESET, help="a preset's name or file (default: %(default)s)"
    )


def add_local(parser: argparse.ArgumentParser, *, others: str) -> None:
    """Add the option that names a local model; `others` is what else the command takes, with its comma or "or"."""
    parser.add_argument(
        "--local",
        default=LOCAL_MODEL,
        help="local model: a name, a GGUF file, hf:owner/repo/file, the address of a server on this machine, such "
        f"as http://localhost:11434/v1#qwen3:4b, or {others} (default: %(default)s)",
    )


def add_runtime(parser: argparse.ArgumentParser) -> None:
    """Add the option that says what runs a local model which is named by a name or a file."""
    parser.add_argument(
        "--runtime",
        choices=("auto", "engine", "llama-server"),
        default="auto",
        help="what runs the local model: disco's own engine, or llama.cpp's server (default: auto, the first of these "
        "that is installed)",
    )


def add_context(parser: argparse.ArgumentParser) -> None:
    """Add the option that says how long the context of a local model is."""
    parser.add_argument(
        "--context",
        type=int,
        metavar="TOKENS",
        help="longest prompt and answer together of the local model (default: what it was trained with, as far as half "
        "of the free memory holds it)",
    )


def add_lora(parser: argparse.ArgumentParser) -> None:
    """Add the option that names LoRA adapters of a local model."""
    parser.add_argument(
        "--lora",
        action="append",
        default=[],
        metavar="FILE[:SCALE]",
        help="a LoRA adapter of the local model: a GGUF file, with how much of it is added to the weights if that is "
        "not all of it (adapter.gguf:0.5); may be given several times",
    )


def add_server_model(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the server's model."""
    parser.add_argument(
        "--model", help="the server's model (default: what OPENAI_MODEL names, else gpt-4o-mini)"
    )


def add_price(parser: argparse._ActionsContainer, *, default: str) -> None:
    """Add the server's price, which `parse_price` parses; `default` says whose it is otherwise."""
    parser.add_argument(
        "--price",
        metavar="IN,OUT",
        help=f"of the server's model, USD per million tokens, such as 0.15,0.60 (default: {default})",
    )


def parse_price(text: str) -> Price:
    """Parse a price such as "0.15,0.60": USD per million tokens, in and out.

    Raises:
        ConfigurationError: the text is not two numbers, 0 or more.
    """
    try:
        cost_in, cost_out = (float(part) for part in text.split(","))
        return Price(usd_per_mtok_in=cost_in, usd_per_mtok_out=cost_out)
    except ValueError as error:
        raise ConfigurationError(
            f'a price is USD per million tokens, in and out, such as "0.15,0.60", not {text!r}'
        ) from error


def add_threads(parser: argparse.ArgumentParser, *, default: int | None = None) -> None:
    """Add the number of llama.cpp's threads; None: all cores but one."""
    shown = "all cores but one" if default is None else default
    parser.add_argument(
        "--threads", type=int, default=default, metavar="N", help=f"threads of llama.cpp (default: {shown})"
    )


def add_key_file(parser: argparse.ArgumentParser, variable: str) -> None:
    """Add the file of a server's key, which is else in this environment variable."""
    parser.add_argument(
        "--key-file",
        metavar="FILE",
        help=f"a file that contains only the server's key (default: ${variable})",
    )


def add_prompts(parser: argparse.ArgumentParser, *, tokens: int) -> None:
    """Add the prompts that a measurement sends, and how long each answer is by default."""
    parser.add_argument(
        "--prompts", metavar="FILE", help="sample prompts, one on each line (default: four shipped ones)"
    )
    parser.add_argument(
        "--tokens", type=int, default=tokens, metavar="N", help="tokens of each answer (default: %(default)s)"
    )


def add_state(parser: argparse.ArgumentParser, *, off: bool = False) -> None:
    """Add the state file; `off`: the command works without one, too."""
    what = "the state file, or `off`" if off else "the state file"
    parser.add_argument("--state", metavar="FILE", help=f"{what} (default: $DISCO_STATE, else the user's)")


def add_recording(parser: argparse.ArgumentParser) -> None:
    """Add a file of route records that is read."""
    parser.add_argument(
        "trace", metavar="FILE", help="route records, as disco.RouteLog writes them (JSON lines)"
    )


def add_record(parser: argparse.ArgumentParser) -> None:
    """Add a file that route records are appended to."""
    parser.add_argument("--record", metavar="FILE", help=RECORD)


def add_figures(parser: argparse._ActionsContainer) -> None:
    """Add a file of JSON beside the printed tables."""
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="write the figures as JSON; - is standard output"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add results as JSON on standard output."""
    parser.add_argument(
        "--json", action="store_true", help="print the results as JSON, and all else on standard error"
    )


def option(name: str) -> str:
    """Return an option as typed: "--max-tokens" for "max_tokens"."""
    return f"--{name.replace('_', '-')}"


def check_least(arguments: argparse.Namespace, **least: float) -> None:
    """Check that numbers are not below their least.

    Raises:
        ConfigurationError: one is, or is no number.
    """
    for name, bound in least.items():
        value = getattr(arguments, name)
        if value is not None and not value >= bound:
            raise ConfigurationError(f"{option(name)} must be at least {bound}, not {value}")
