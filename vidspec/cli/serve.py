"""``vidspec serve``: captions over HTTP."""

from __future__ import annotations

import errno
import os
import socket
import sys
from contextlib import redirect_stdout, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vidspec.cli.options import PROFILE_HELP, SERVING, TerminalOptions, flatten_options
from vidspec.cli.printed import print_note
from vidspec.config.run_spec import RunSpec
from vidspec.config.values import parse_size
from vidspec.errors import UsageError

if TYPE_CHECKING:
    from vidspec.serve.config import ServeConfig

HELPS = {
    "prompt": "Question or instruction about the video where a request has no text.",
    "profile": PROFILE_HELP,
}


@flatten_options(*SERVING, "batch", helps=HELPS)
def serve(
    spec: RunSpec,
    options: TerminalOptions,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8000,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The model's name in the API.")] = None,
    api_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the key that clients must send (or set VIDSPEC_API_KEY)."),
    ] = None,
    max_waiting: Annotated[
        int, typer.Option(min=1, metavar="N", help="Requests that may wait; more are answered with 503.")
    ] = 64,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Give up on a request after this.")] = 600,
    allow_media_domain: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="Fetch media from this public host; SCHEME://HOST:PORT: at any address."),
    ] = None,
    allow_local_media: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Read file: media below this folder.")
    ] = None,
    max_media: Annotated[str, typer.Option(metavar="SIZE", help="Refuse larger media: 500MB, 2GiB.")] = "64MiB",
    max_frames: Annotated[int, typer.Option(min=1, metavar="N", help="Refuse clips of more frames.")] = 512,
    max_duration: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Refuse clips that last longer.")
    ] = 14400,
    keep_videos: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory for recent videos, not read again for a further question.")
    ] = "1GiB",
    no_page: Annotated[bool, typer.Option("--no-page", help="Do not serve the page at /.")] = False,
) -> int:
    """Serve captions over HTTP, in OpenAI's chat API, with a page to try it.

    Options are defaults that a request may change. SIGTERM or Ctrl-C ends the server after the requests it has.
    """
    require_packages("serve", *(["aiohttp"] if allow_media_domain else []))
    from vidspec.serve.config import ServeConfig

    if allow_local_media is not None and not allow_local_media.is_dir():
        raise UsageError(f"--allow-local-media {allow_local_media}: there is no such folder")
    listener = listen(host, port, f"--host {host} --port {port}")
    loopback = _is_loopback(host)
    key = _read_key(api_key)
    if not loopback and key is None:
        print_note("note: anybody who reaches this address can use the server; --api-key FILE asks for a key")
    config = ServeConfig(
        name=name or "",
        batch=None if spec.batch == "auto" else spec.batch,
        max_waiting=max_waiting,
        timeout=timeout,
        api_key=key,
        loopback=loopback,
        media_hosts=tuple(_media_host(one) for one in allow_media_domain or ()),
        media_folder=None if allow_local_media is None else os.path.realpath(allow_local_media),
        max_bytes=parse_size(max_media, "--max-media"),
        max_frames=max_frames,
        max_seconds=max_duration,
        keep_bytes=0 if keep_videos == "0" else parse_size(keep_videos, "--keep-videos"),
        page=not no_page,
    )
    with redirect_stdout(sys.stderr):
        return _serve(spec, options, config, listener, host)


def _serve(spec: RunSpec, options: TerminalOptions, config: ServeConfig, listener: socket.socket, host: str) -> int:
    from dataclasses import replace

    from vidspec.cli import start
    from vidspec.runs.feed import reader_count

    spec, resolved = start.resolve_request_profile(spec, "serve", quiet=options.quiet)
    profile = resolved.profile
    fetches = not options.quiet and start.announce(profile, "serve")
    captioner = start.load_captioner(profile, fetches=fetches, quiet=options.quiet)
    from vidspec.decoding.captioner_models import models_record
    from vidspec.serve.app import build_app
    from vidspec.serve.connections import BACKLOG, build_server

    with captioner:
        target = profile.models.pair or models_record(captioner.client.setup)["target"].rstrip("/")
        model = config.name or os.path.basename(target)
        config = replace(config, name=model, readers=reader_count(spec))
        server = build_server(build_app(captioner, config, print_note), config)
        shown = f"[{host}]" if ":" in host else host
        listener.listen(BACKLOG)
        if not options.quiet:
            address = f"http://{shown}:{listener.getsockname()[1]}"
            page = f"; the page to try it is {address}/" if config.page else ""
            print_note(f"serving {model} at {address}/v1{page} (Ctrl-C ends)")
        with suppress(KeyboardInterrupt):  # raised again after all requests were answered
            server.run(sockets=[listener])
    return 0


def require_packages(command: str, *further: str) -> None:
    """Refuse a command whose server's packages are missing.

    Raises:
        UsageError: naming one.
    """
    for module in ("starlette", "uvicorn", *further):
        if find_spec(module) is None:
            raise UsageError(
                f"{command} needs {module}, which is not installed", hint="pip install aiohttp starlette uvicorn"
            )


def listen(host: str, port: int, named: str) -> socket.socket:
    """Return a socket bound to an address that the user ``named``, before models are loaded.

    Raises:
        UsageError: it cannot be had.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        refused = error.errno in (errno.EADDRINUSE, errno.EACCES)
        hint = "take another --port, or 0 for a free one" if refused else "name an address of this machine"
        raise UsageError(f"{named}: {error.strerror}", hint=hint) from None
    return listener


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or host.startswith("127.")


def _read_key(file: Path | None) -> str | None:
    """Return the API key of the option or of the variable."""
    from vidspec.files import read_whole

    if file is None:
        return os.environ.get("VIDSPEC_API_KEY") or None
    try:
        key = read_whole(file, 4096, f"--api-key {file}").decode("ascii").strip()
    except UnicodeDecodeError:
        key = ""
    if not key:
        raise UsageError(f"--api-key {file}: must hold a key of ASCII characters")
    return key


def _media_host(text: str) -> str:
    """Return a host, or an origin, in lower case."""
    from vidspec.runs.access import check_allowed_url, is_url

    if is_url(text):
        return check_allowed_url(text)
    if not text or text == "*" or any(one in text for one in "/\\@:? "):
        raise UsageError(
            f"--allow-media-domain {text}: must be a host, or SCHEME://HOST", hint="write it like example.org"
        )
    return text.lower()
