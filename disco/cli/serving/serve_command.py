"""`disco serve`: an OpenAI-compatible HTTP server on this machine for both models."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import openai

from disco.cli.console import Screen
from disco.cli.output_files import check_output
from disco.cli.serving.serve_setup import KEY_VARIABLE, announce, callers_key, logging_at, require_extra
from disco.cli.serving.settings import MAX_ANSWERS, MAX_ROUNDS, ServeSettings, add_options, read_settings
from disco.errors import ConfigurationError, DiscoError, ModelFileError, nearest

if TYPE_CHECKING:
    from disco.client import AsyncDisco, Backup, Tier
    from disco.endpoints.llamacpp.batching.round_engine import RoundEngine
    from disco.endpoints.llamacpp.layers.layer_engine import LayerEngine
    from disco.endpoints.redaction import Redact
    from disco.endpoints.saved_prompts import PromptCache
    from disco.server.named_models import NamedModels
    from disco.speculate.layer_facts import LayerFacts
    from disco.speculate.messages import VerifierFacts

__all__ = ["add", "run_serve"]

EXAMPLE: Final = Path(__file__).with_name("example.toml")
BACKUP_KEY_VARIABLE: Final = "DISCO_BACKUP_KEY"
TIER_KEY_VARIABLE: Final = "DISCO_TIER_KEY"
TIER_OPTIONS: Final = ("reach", "price", "name")
_MIB: Final = 2**20


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco serve`."""
    parser.description = (
        "Serves both models at one base URL. The server behind disco is the one in OPENAI_API_KEY and OPENAI_BASE_URL. "
        "Without a key, only the local model answers. With --verify, the local model also checks what other devices "
        "draft. With --layers, it computes for devices the layers that they lack. If a key is set in "
        f"{KEY_VARIABLE} or --key-file, callers must send it."
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="take the settings from a TOML file, which can also name several models; options given here replace those "
        "of the file; see docs/how-to/serve-config.md",
    )
    parser.add_argument(
        "--example-config", action="store_true", help="print an example of such a file, and end"
    )
    add_options(parser)
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
        "--backup",
        nargs=2,
        action="append",
        default=[],
        metavar=("URL", "MODEL"),
        help="a further server, used if the first one does not answer; may be given several times. Its key is in "
        f"{BACKUP_KEY_VARIABLE}_1 (_2 for the second, ...), or in {BACKUP_KEY_VARIABLE} for all backups",
    )
    parser.add_argument("--key", type=_no_key, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.set_defaults(run=run_serve, fast_loop=True)


def _no_key(text: str) -> str:
    del text  # the message must not repeat the key
    raise argparse.ArgumentTypeError(
        "every user of this machine can read a command line; put the key into the environment "
        f"variable {KEY_VARIABLE}, or into a file named by --key-file"
    )


async def run_serve(screen: Screen, arguments: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM.

    Raises:
        ConfigurationError: the extra is not installed, or the arguments are invalid. With a file, the message names it.
        ModelFileError: there is no such model.
    """
    if arguments.example_config:
        print(EXAMPLE.read_text(encoding="utf-8"), end="")
        return 0
    require_extra()
    try:
        await _serve(screen, arguments)
    except (ConfigurationError, ModelFileError) as error:
        path = Path(arguments.config or "")
        if arguments.config is None or str(error).startswith((f"{path}:", "--config ")):
            raise
        raise ConfigurationError(f"{path}: {error}") from error
    return 0


async def _serve(screen: Screen, arguments: argparse.Namespace) -> None:
    settings = read_settings(arguments)
    is_named = bool(settings.models)
    key = callers_key(settings.key_file)
    state = None if settings.state == "off" else settings.state  # no file's name
    read = argparse.Namespace(**dict(settings) | {"config": arguments.config})
    check_output(read, record=settings.record, histories=settings.histories, state=state)
    from disco.cli.serving.serve_clients import ClientMaker, backups_of, tiers_of  # noqa: PLC0415 - these take the extra
    from disco.client import RouteLog  # noqa: PLC0415 - as above
    from disco.endpoints.host import HostEndpoint  # noqa: PLC0415 - as above
    from disco.endpoints.llamacpp.layers.layer_engine import LayerEngine  # noqa: PLC0415 - as above
    from disco.endpoints.llamacpp.model.added_files import loras_named  # noqa: PLC0415 - as above
    from disco.server import LiveBoard, Metrics, serve  # noqa: PLC0415 - needs the extra

    metrics = Metrics(by_model=is_named)
    page = (
        LiveBoard(answers=settings.page.answers, text=settings.page.text) if settings.page.enabled else None
    )
    own = (
        None
        if settings.verify is None
        else HostEndpoint(
            model=settings.verify, runtime="engine", lora=loras_named(settings.lora), **_of_slots(settings)
        )
    )
    engine = None if own is None else own.rounds
    layers = None if settings.layers is None else LayerEngine(settings.layers, **_of_slots(settings))
    record = nullcontext() if settings.record is None else RouteLog(settings.record)
    usually = MAX_ANSWERS if engine is None else MAX_ROUNDS
    with logging_at(settings.log_level), record as log:

        def on_route(route: Any) -> None:
            metrics.answer(route)
            if page is not None:
                page.answered(route)
            if log is not None:
                log(route)

        async with AsyncExitStack() as stack:
            if layers is not None:
                stack.push_async_callback(layers.aclose)
            if own is not None:
                stack.push_async_callback(own.aclose)
            maker = ClientMaker(
                settings,
                engine=own,
                prompt_cache=_prompt_cache(settings),
                redact=None if settings.redact is None else _hook(settings.redact),
                on_route=on_route,
            )
            client: AsyncDisco | NamedModels | None = None
            if is_named:
                client = await maker.named(stack)
            else:
                tiers = [*tiers_of(settings.tiers, ["tiers"]), *_tiers(arguments.tier)]
                backups = [*backups_of(settings.backups, ["backups"]), *_backups(arguments.backup)]
                try:
                    client = maker.one(tiers, backups)
                except DiscoError:
                    raise
                except openai.OpenAIError:  # there is neither a key nor a local model
                    if layers is None:
                        raise
                else:
                    await stack.enter_async_context(client)
            # On a terminal only: what reads the output of a program expects the base URL in its first line.
            loading = stack.enter_context(ExitStack())
            loading.enter_context(screen.waiting(_loads(client)))
            await serve(
                client,
                host=settings.host,
                port=settings.port,
                key=key,
                allow_origins=settings.allow_origin,
                allow_hosts=settings.allow_host,
                max_body_bytes=int(settings.max_body_mib * _MIB),
                max_concurrent=settings.max_concurrent or usually,
                grace_s=settings.grace_s,
                metrics=metrics,
                verifier=engine,
                layers=layers,
                page=page,
                attachable=settings.attach,
                on_ready=lambda base_url: _announce(
                    screen,
                    loading,
                    client,
                    (engine, layers),
                    base_url,
                    with_key=key is not None,
                    with_page=page is not None,
                ),
            )


def _prompt_cache(settings: ServeSettings) -> PromptCache | None:
    """Return how prompts are saved; None: they are not."""
    from disco.endpoints.saved_prompts import PromptCache  # noqa: PLC0415 - as above

    if settings.prompt_cache is False:
        return None
    size = {} if settings.prompt_cache_mib is None else {"max_bytes": settings.prompt_cache_mib * _MIB}
    folder = settings.prompt_cache if isinstance(settings.prompt_cache, str) else None
    return PromptCache(folder=folder, private=settings.prompt_cache_private, **size)


def _of_slots(settings: ServeSettings) -> dict[str, Any]:
    """Return what both kinds of engine are made with."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "slots": settings.slots,
        "context_tokens": settings.context_tokens,
        "threads": settings.threads or max(1, cores - 1),
    }


def _loads(client: AsyncDisco | NamedModels | None) -> str:
    """Return what is said until the server answers."""
    from disco.server.named_models import NamedModels  # noqa: PLC0415 - as above

    clients = [] if client is None else NamedModels.of(client).clients
    names = dict.fromkeys(one.router.local_model or "" for one in clients)
    return f"Loading {', '.join(filter(None, names)) or 'what is served'}"


def _announce(
    screen: Screen,
    loading: ExitStack,
    client: AsyncDisco | NamedModels | None,
    engines: tuple[RoundEngine | None, LayerEngine | None],
    base_url: str,
    *,
    with_key: bool,
    with_page: bool,
) -> None:
    from disco.server.named_models import NamedModels  # noqa: PLC0415 - as above

    loading.close()
    verifier, layers = engines
    lines = ["no model answers here"]
    if isinstance(client, NamedModels):
        lines = [f"{model.name}: {_answers(model.client)}" for model in client.named]
    elif client is not None:
        lines = [_answers(client)]
    if verifier is not None:
        lines.append(_verifies(verifier.facts()))
    if layers is not None:
        lines.append(_computes(layers.facts()))
    if with_page:
        lines.append(f"live page: {base_url.removesuffix('v1')}")
    announce(screen, base_url, lines, with_key=with_key)


def _answers(client: AsyncDisco) -> str:
    """Return which models answer, in words."""
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
    return "; ".join(parts)


def _verifies(facts: VerifierFacts) -> str:
    """Return what other devices get of a verify server, in words."""
    return f"verifies drafts: {_slots(facts)}; tokens of a batch: {_points(facts.verify_s)}"


def _computes(facts: LayerFacts) -> str:
    """Return what other devices get of a layer server, in words."""
    which = f"layers {facts.layers + 1} to {facts.total_layers} of {facts.model}"
    return f"computes {which}: {_slots(facts)}; tokens of a pass: {_points(facts.compute_s)}"


def _slots(facts: VerifierFacts | LayerFacts) -> str:
    return f"{facts.slots} {'slot' if facts.slots == 1 else 'slots'} of {facts.context_tokens} tokens"


def _points(curve: Sequence[tuple[int, float]]) -> str:
    return ", ".join(f"{rows} in {1000 * seconds:.3g} ms" for rows, seconds in curve)


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


def _tiers(given: Sequence[Sequence[str]]) -> list[Tier | str]:
    """Return the tiers, with their keys from the environment; an endpoint of an installed package as its text.

    Raises:
        ConfigurationError: a part is missing, or an option is unknown or has a wrong value.
    """
    from disco.client import Tier  # noqa: PLC0415 - `disco --help` needs no client
    from disco.client.endpoint_catalog.plugged import as_plugin  # noqa: PLC0415 - as above

    tiers: list[Tier | str] = []
    for number, (url, *rest) in enumerate(given, 1):
        if not rest and as_plugin(url) is not None:
            tiers.append(url)
            continue
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
