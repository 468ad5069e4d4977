"""Clips/s of the server beside a folder: ``python -m research.serve_throughput CLIP...``, taking turns.

One process loads the models, and captions the clips as ``vidspec caption`` does and behind the server; the clients are
another process. Texts are compared. With ``--peer vllm=PYTHON`` the same requests also go to vLLM's server with the
same target, in the environment of ``make peers``.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
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
    from vidspec.config.profiles import Profile

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
    peer: Annotated[
        str | None, typer.Option(metavar="vllm=PYTHON", help="vLLM's server too; it loads the pair embedded-qwen.")
    ] = None,
) -> int:
    """Caption the same clips in a folder run and by clients of a server, and print clips/s of both."""
    from research.peers.outside import peer_interpreters
    from research.peers.profile_worker import ProfileContenderWorker
    from vidspec.config import labels
    from vidspec.config.run_spec import RunSpec
    from vidspec.runs.inputs import collect_inputs

    entries = collect_inputs(RunSpec(paths=tuple(map(str, clips)))).entries
    paths = [str(Path(entry.path).resolve()) for entry in entries]
    overrides = dict(one.split("=", 1) for one in settings or ())
    worker = ProfileContenderWorker(labels.load(profile, overrides))
    pythons = peer_interpreters([peer] if peer else [], ("vllm",))
    runs: dict[str, list[float]] = {"folder": [], "server": [], **{name: [] for name in pythons}}
    equal = dict.fromkeys(pythons, 0)
    with ExitStack() as stack:
        pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
        ports = {"server": stack.enter_context(_serve(worker, batch))}
        ports |= {name: stack.enter_context(_serve_vllm(worker, python, batch)) for name, python in pythons.items()}
        body = _body(worker.captioner.client.profile)
        for name in pythons:  # its first requests load and compile
            pool.submit(_ask_all, ports[name], paths[:batch], clients, body).result()
        for _ in range(repeats):
            timed = worker.run(paths, batch)
            runs["folder"].append(float(str(timed["seconds"])))
            for name, port in ports.items():
                seconds, texts = pool.submit(_ask_all, port, paths, clients, body).result()
                runs[name].append(seconds)
                wrong = _different(worker, timed["ids"], dict(zip(paths, texts, strict=True)))
                if name in pythons:
                    equal[name] = len(paths) - len(wrong)
                elif wrong:
                    raise VidspecError(f"the server's text differs for {', '.join(wrong[:3])}")
    rates = {name: len(paths) / median(seconds) for name, seconds in runs.items()}
    print(f"{len(paths)} clips, {repeats} runs: folder {rates['folder']:.2f} clips/s, ", end="")
    print(f"server {rates['server']:.2f} clips/s ({rates['server'] / rates['folder']:.1%}) ", end="")
    print(f"with {clients} clients; all texts are equal")
    for name, same in equal.items():
        print(f"{name} with the same requests: {rates[name]:.2f} clips/s; {same} of {len(paths)} texts are equal")
    return 0


def _body(profile: Profile) -> Callable[[str], bytes]:
    """Return the function that makes the body of a request from a URL, with a profile's prompt, frames and text."""
    frames = {"fps": profile.video.fps} if profile.video.fps else {"num_frames": profile.video.frames}
    generate, media = profile.generate, {"video": frames}
    return partial(
        chat_body,
        prompt=generate.prompt,
        media_io_kwargs=media,
        max_tokens=generate.max_new_tokens,
        temperature=generate.temperature,
    )


@contextmanager
def _serve_vllm(worker: ProfileContenderWorker, python: str, batch: int) -> Iterator[int]:
    """Run vLLM's server with the target of a worker; yield its port.

    Raises:
        VidspecError: it has ended before it served.
    """
    from research.peers.vllm_worker import environment
    from vidspec.bench.loaded import ModelSource

    models = worker.captioner.client.profile.models
    source = ModelSource(models.pair or "", models.target)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    dtype = str(worker.captioner.client.setup.target.model.dtype).removeprefix("torch.")
    words = ["--model", source.names[0], "--dtype", dtype, "--port", str(port)]
    words += ["--host", "127.0.0.1", "--max-num-seqs", str(batch), "--enforce-eager", "--no-enable-prefix-caching"]
    words += ["--mm-processor-cache-gb", "0", "--limit-mm-per-prompt", '{"video": 1, "image": 0}']
    words += ["--trust-request-mm-kwargs"]  # the requests name the number of frames
    env = {**os.environ, **environment(models.threads)}
    command = [python, "-m", "vllm.entrypoints.openai.api_server", *words]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as server:
        try:
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                if server.poll() is not None:
                    raise VidspecError("vLLM's server has ended before it served; its messages are above")
                time.sleep(1)
            yield port
        finally:
            server.terminate()


@contextmanager
def _serve(worker: ProfileContenderWorker, batch: int) -> Iterator[int]:
    """Run a server with the models of a worker; yield its port."""
    import uvicorn

    from vidspec.serve.app import build_app
    from vidspec.serve.config import ServeConfig

    app = build_app(worker.captioner, ServeConfig(batch=batch, max_waiting=1 << 16, max_bytes=1 << 30, keep_bytes=0))
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


def _ask_all(port: int, paths: Sequence[str], clients: int, body: Callable[[str], bytes]) -> tuple[float, list[str]]:
    """Send every clip once; return the seconds, files opened included, and the texts."""

    async def send() -> list[str]:
        texts, order = [""] * len(paths), iter(range(len(paths)))

        async def work() -> None:
            for number in order:
                url = "data:video/mp4;base64," + base64.b64encode(Path(paths[number]).read_bytes()).decode()
                texts[number] = answer_text(await send_request(port, post_request(body(url))))

        await asyncio.gather(*(work() for _ in range(clients)))
        return texts

    began = time.perf_counter()
    texts = asyncio.run(send())
    return time.perf_counter() - began, texts


def _different(worker: ProfileContenderWorker, ids: object, texts: dict[str, str]) -> list[str]:
    """Return the clips whose text is not that of the token ids."""
    decode = worker.captioner.client.setup.target.model.tokenizer.decode
    expected = {path: decode(one, skip_special_tokens=True).strip() for path, one in dict(ids).items()}  # type: ignore[call-overload]
    return [path for path, text in texts.items() if text != expected.get(path)]


def main(args: Sequence[str] | None = None) -> int:
    """Run the command."""
    return run(command, "serve_throughput", args)


if __name__ == "__main__":
    sys.exit(main())
