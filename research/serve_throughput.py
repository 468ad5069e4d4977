"""Clips/s of the server beside a folder: ``python -m research.serve_throughput CLIP...``, taking turns.

One process loads the models, and captions the clips as ``vidspec caption`` does and behind the server; the clients are
another process. Texts are compared.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from research.commands import run
from research.soak import answer_text, chat_body, post_request, send_request
from vidspec.errors import VidspecError

if TYPE_CHECKING:
    from research.peers.profile_worker import ProfileContenderWorker

__all__ = ["main"]


def command(
    clips: Annotated[list[Path], typer.Argument(metavar="CLIP...", help="Video files and folders.")],
    *,
    profile: Annotated[str, typer.Option(help="Profile of both.")] = "vanilla-sd",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Keys of the profile."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Clips in flight.")] = 8,
    clients: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 32,
    repeats: Annotated[int, typer.Option(min=1, help="Runs over all clips; the medians are shown.")] = 3,
) -> int:
    """Caption the same clips in a folder run and by clients of a server, and print clips/s of both."""
    from research.peers.profile_worker import ProfileContenderWorker
    from vidspec.config import labels
    from vidspec.dataset.inputs import InputSources, collect_inputs

    entries = collect_inputs(InputSources(paths=tuple(map(str, clips)))).entries
    paths = [str(Path(entry.path).resolve()) for entry in entries]
    overrides = dict(one.split("=", 1) for one in settings or ())
    worker = ProfileContenderWorker(labels.load(profile, overrides))
    folder, served = list[float](), list[float]()
    with _serve(worker, batch) as port, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for _ in range(repeats):
            timed = worker.run(paths, batch)
            folder.append(float(str(timed["seconds"])))
            seconds, texts = pool.submit(_ask_all, port, paths, clients).result()
            served.append(seconds)
            wrong = _different(worker, timed["ids"], dict(zip(paths, texts, strict=True)))
            if wrong:
                raise VidspecError(f"the server's text differs for {', '.join(wrong[:3])}")
    rates = [len(paths) / median(one) for one in (folder, served)]
    print(f"{len(paths)} clips, {repeats} runs: folder {rates[0]:.2f} clips/s, server {rates[1]:.2f} clips/s ", end="")
    print(f"({rates[1] / rates[0]:.1%}) with {clients} clients; all texts are equal")
    return 0


@contextmanager
def _serve(worker: ProfileContenderWorker, batch: int) -> Iterator[int]:
    """Run a server with the models of a worker; yield its port."""
    import uvicorn

    from vidspec.serve.app import build_app
    from vidspec.serve.config import ServeConfig

    app = build_app(worker.captioner, ServeConfig(batch=batch, max_waiting=1 << 16, max_bytes=1 << 30))
    server = uvicorn.Server(uvicorn.Config(app, http="h11", ws="none", log_level="warning"))
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def _ask_all(port: int, paths: Sequence[str], clients: int) -> tuple[float, list[str]]:
    """Send every clip once; return the seconds, files opened included, and the texts."""

    async def send() -> list[str]:
        texts, order = [""] * len(paths), iter(range(len(paths)))

        async def work() -> None:
            for number in order:
                url = "data:video/mp4;base64," + base64.b64encode(Path(paths[number]).read_bytes()).decode()
                texts[number] = answer_text(await send_request(port, post_request(chat_body(url, ""))))

        await asyncio.gather(*(work() for _ in range(clients)))
        return texts

    began = time.perf_counter()
    texts = asyncio.run(send())
    return time.perf_counter() - began, texts


def _different(worker: ProfileContenderWorker, ids: object, texts: dict[str, str]) -> list[str]:
    """Return the clips whose text is not that of the token ids."""
    decode = worker.captioner.target.model.tokenizer.decode
    expected = {path: decode(one, skip_special_tokens=True).strip() for path, one in dict(ids).items()}  # type: ignore[call-overload]
    return [path for path, text in texts.items() if text != expected.get(path)]


def main(args: Sequence[str] | None = None) -> int:
    """Run the command."""
    return run(command, "serve_throughput", args)


if __name__ == "__main__":
    sys.exit(main())
