"""`disco serve`: an OpenAI-compatible HTTP server on this machine for both models."""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from disco.cli.console import Screen
from disco.cli.output_files import check_output
from disco.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from disco.client import AsyncDisco, Backup, Tier
    from disco.endpoints.redaction import Redact

__all__ = ["KEY_VARIABLE", "add_serve", "run_serve"]

KEY_VARIABLE: Final = "DISCO_SERVER_KEY"
BACKUP_KEY_VARIABLE: Final = "DISCO_BACKUP_KEY"
TIER_KEY_VARIABLE: Final = "DISCO_TIER_KEY"
TIER_OPTIONS: Final = ("reach", "price", "name")
_MIB: Final = 2**20

Commands = Any  # argparse's own type for what `add_subparsers` returns is private


def add_serve(commands: Commands) -> argparse.ArgumentParser:
    """Add the command `disco serve`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve",
        help="run an OpenAI-compatible HTTP server for apps in any language",
        description="Serves both models at one base URL. The server behind disco is the one in OPENAI_API_KEY and "
        f"OPENAI_BASE_URL. Without a key, only the local model answers. If a key is set in {KEY_VARIABLE} or "
        "--key-file, callers must send it.",
    )
    parser.add_argument(
        "--local",
        default="smollm2-135m",
        help="local model: a name, a GGUF file, hf:owner/repo/file, or `none` (default: smollm2-135m)",
    )
    parser.add_argument(
        "--isolation",
        choices=("thread", "process"),
        help="where the local model runs; a separate process may crash without harm to this one (default: thread)",
    )
    parser.add_argument(
        "--preset", "--policy", default="balanced", help="a preset's name or file (default: balanced)"
    )
    parser.add_argument(
        "--tier",
        nargs="+",
        action="append",
        default=[],
        metavar=("URL MODEL", "OPTION=VALUE"),
        help="a model between the local one and the server; may be given several times, from the smallest to the best. "
        "Options: reach=device, own or any (default); price=IN,OUT in USD per million tokens; name=NAME. Its key, if "
        f"it needs one, is in {TIER_KEY_VARIABLE}_1 (_2 for the second, ...), or in {TIER_KEY_VARIABLE} for all tiers",
    )
    parser.add_argument(
        "--histories",
        metavar="FILE",
        help="keep the scores that a cascade's thresholds are learnt from, numbers only, across restarts",
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
        "current folder or an installed one; see docs/redaction.md",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=int, default=8642, help="port to listen on; 0 picks a free one (default: 8642)"
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
        default=256,
        metavar="N",
        help="most answers at the same time (default: 256)",
    )
    parser.add_argument(
        "--max-body", type=float, default=32.0, metavar="MIB", help="longest request, MiB (default: 32)"
    )
    parser.add_argument(
        "--grace", type=float, default=10.0, metavar="S", help="time for open answers to end, s (default: 10)"
    )
    parser.add_argument(
        "--record", metavar="FILE", help="append route records, numbers only, for `disco replay` (JSON lines)"
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="warning",
        help="lowest level of the log on standard error: warning shows failures, info also answers (default: warning)",
    )
    return parser


async def run_serve(screen: Screen, arguments: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM.

    Raises:
        ConfigurationError: the extra is not installed, or the arguments are invalid.
    """
    _require_extra()
    local = None if arguments.local == "none" else arguments.local
    if local is None and arguments.isolation is not None:
        raise ConfigurationError(
            "--isolation is for a local model, but --local none asks for none: leave one of them out"
        )
    check_output(arguments, record=arguments.record, histories=arguments.histories)
    from disco.client import AsyncDisco, RouteLog  # noqa: PLC0415 - `disco --help` needs no model
    from disco.endpoints.openai_api.sdk_client import ReusesRequests  # noqa: PLC0415 - as above
    from disco.server import Metrics, serve  # noqa: PLC0415 - needs the extra

    class Client(ReusesRequests, AsyncDisco):
        """This command's own client: no application changes its headers."""

    key = _key(arguments.key_file)
    metrics = Metrics()
    record = nullcontext() if arguments.record is None else RouteLog(arguments.record)
    with _logging(arguments.log_level), record as log:

        def on_route(route: Any) -> None:
            metrics.answer(route)
            if log is not None:
                log(route)

        async with Client(
            local=local,
            isolation=arguments.isolation or "thread",
            preset=arguments.preset,
            on_route=on_route,
            tiers=_tiers(arguments.tier),
            backups=_backups(arguments.backup),
            histories=arguments.histories,
            redact=None if arguments.redact is None else _hook(arguments.redact),
        ) as client:
            await serve(
                client,
                host=arguments.host,
                port=arguments.port,
                key=key,
                allow_origins=arguments.allow_origin,
                allow_hosts=arguments.allow_host,
                max_body_bytes=int(arguments.max_body * _MIB),
                max_concurrent=arguments.max_concurrent,
                grace_s=arguments.grace,
                metrics=metrics,
                on_ready=lambda base_url: _announce(screen, client, base_url, with_key=key is not None),
            )
    return 0


@contextmanager
def _logging(level: str) -> Iterator[None]:
    """Write disco's log to standard error. Other libraries' logs may contain URLs with keys and are left out."""
    logger = logging.getLogger("disco")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _announce(screen: Screen, client: AsyncDisco, base_url: str, *, with_key: bool) -> None:
    # Objects loaded by now stay until the end. Scanning them for garbage again and again would stall every stream.
    # Only for this command, whose process is its own. `disco.server.serve` leaves its host's collector alone.
    gc.collect()
    gc.freeze()
    here = client.router.local_model
    there = (
        None
        if client.server is None
        else str(client.base_url.copy_with(userinfo=b"", query=None)).rstrip("/")
    )
    parts = [f"local model: {here or 'none'}"]
    if client.router.endpoints.tiers:
        parts.append(f"tiers: {', '.join(tier.name for tier in client.router.endpoints.tiers)}")
    parts.append(f"server: {there or 'none'}")
    parts.append(f"preset: {client.router.preset.name}")
    screen.line(base_url)
    screen.line("; ".join(parts), style="dim")
    callers = "the key you set" if with_key else "any text as the key"
    screen.line(f"Give clients this base URL and {callers}. Ctrl-C stops the server.", style="dim")


def _backups(given: Sequence[Sequence[str]]) -> list[Backup]:
    """Return the further servers, with their keys from the environment.

    Raises:
        ConfigurationError: a key is missing.
    """
    from disco.client import Backup  # noqa: PLC0415 - `disco --help` needs no client

    backups = []
    for number, (url, model) in enumerate(given, 1):
        variable = f"{BACKUP_KEY_VARIABLE}_{number}"
        key = os.environ.get(variable) or os.environ.get(BACKUP_KEY_VARIABLE)
        if not key:
            raise ConfigurationError(
                f"The backup {model!r} has no key. Set {variable} or {BACKUP_KEY_VARIABLE} (any text if the server "
                "checks none)."
            )
        backups.append(Backup(base_url=url, api_key=key, model=model))
    return backups


def _hook(given: str) -> Redact:
    """Return the function that `--redact` names.

    Raises:
        ConfigurationError: there is no such module, or no such function in it.
    """
    module, _, name = given.partition(":")
    if not (module and name):
        raise ConfigurationError(
            f"--redact needs a module and a function in it, MODULE:FUNCTION; got {given!r}"
        )
    sys.path.insert(0, str(Path.cwd()))  # a console script does not look there
    try:
        hook: Redact | None = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise ConfigurationError(f"--redact: the module {module!r} cannot be imported: {error}") from error
    if hook is None:
        raise ConfigurationError(f"--redact: the module {module!r} has no {name!r}")
    return hook


def _tiers(given: Sequence[Sequence[str]]) -> list[Tier]:
    """Return the tiers, with their keys from the environment.

    Raises:
        ConfigurationError: a part is missing, or an option is unknown or has a wrong value.
    """
    from disco.client import Tier  # noqa: PLC0415 - `disco --help` needs no client

    tiers = []
    for number, (url, *rest) in enumerate(given, 1):
        if not rest or "=" in rest[0]:
            raise ConfigurationError("--tier needs the address of a server and the model to request from it")
        options: dict[str, Any] = {}
        for part in rest[1:]:
            name, _, value = part.partition("=")
            if name not in TIER_OPTIONS:
                raise ConfigurationError(f"--tier has no option {name!r}. {nearest(name, TIER_OPTIONS)}")
            options[name] = _tier_value(name, value)
        key = os.environ.get(f"{TIER_KEY_VARIABLE}_{number}") or os.environ.get(TIER_KEY_VARIABLE)
        tiers.append(Tier(base_url=url, model=rest[0], api_key=key, **options))
    return tiers


def _tier_value(name: str, text: str) -> Any:
    """Return the value of an option of `--tier`.

    Raises:
        ConfigurationError: it is none.
    """
    if name != "price":
        return text
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigurationError(
            f"--tier: price must be two numbers, such as price=0.1,0.4; not {text!r}"
        ) from None


def _no_key(text: str) -> str:
    del text  # the message must not repeat the key
    raise argparse.ArgumentTypeError(
        "every user of this machine can read a command line; put the key into the environment "
        f"variable {KEY_VARIABLE}, or into a file named by --key-file"
    )


def _key(file: str | None) -> str | None:
    """Return the callers' key; None if none is set.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    if file is None:
        return os.environ.get(KEY_VARIABLE)
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigurationError(f"The key file {file} cannot be read: {why}.") from error


def _require_extra() -> None:
    try:
        import httptools  # noqa: F401, PLC0415 - as below
        import prometheus_client  # noqa: F401, PLC0415 - only to check that it is installed
        import starlette  # noqa: F401, PLC0415
        import uvicorn  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f'`disco serve` needs the package {error.name!r}: pip install "disco-llm[server]"'
        ) from error
