"""A server under load and attack: ``python -m research.soak`` sends requests, a tenth of them hostile, and checks it.

Linux only: memory, descriptors and processes of the server are read from ``/proc``.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from research.commands import run
from vidspec.errors import VidspecError

__all__ = ["answer_text", "chat_body", "main", "post_request", "send_request"]

PROMPTS = ("Describe this video in detail.", "What moves?")
LENGTHS = (6, 12)
#: Options that the server and ``vidspec caption`` have in common.
OPTIONS = ("--frames", "2", "--device", "cpu")
#: Parts of the run, after each of which the idle server is measured; those that warm it up; its largest growth after.
PARTS, WARM, GROWTH = 10, 2, 0.05


class Good(NamedTuple):
    """A request with its right answer."""

    body: bytes
    text: str


class Usage(NamedTuple):
    """Memory in bytes, open descriptors, and processes of a server.

    Memory is what its processes have written, pages that several of them share divided. Pages of files are left out:
    their share depends on other processes of the machine that map the same libraries.
    """

    memory: int
    descriptors: int
    processes: int

    def describe(self) -> str:
        """Return the figures with their units."""
        return f"{self.memory >> 20} MiB, {self.descriptors} descriptors, {self.processes} processes"


@dataclass
class SoakResult:
    """Counts of a run; ``wrong`` lists answers that differ, ``usage`` is that of the idle server between the parts."""

    right: int = 0
    wrong: list[str] = field(default_factory=list)
    hostile: Counter[str] = field(default_factory=Counter)
    usage: list[Usage] = field(default_factory=list)
    seconds: float = 0.0

    def failures(self) -> list[str]:
        """Return the properties that do not hold."""
        begin, warm, end = self.usage[0], self.usage[WARM], self.usage[-1]
        found = self.wrong[:5]
        if end.memory > warm.memory * (1 + GROWTH):
            found.append(f"memory grew from {warm.memory >> 20} to {end.memory >> 20} MiB")
        if end.descriptors > begin.descriptors:
            found.append(f"{end.descriptors - begin.descriptors} descriptors are left")
        if end.processes > begin.processes:
            found.append(f"{end.processes - begin.processes} processes are left")
        return found


def command(
    requests: Annotated[int, typer.Option(min=20, help="Requests to send.")] = 2000,
    at_once: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 32,
    profile: Annotated[str, typer.Option(help="Profile of the server.")] = "vanilla-sd",
    seed: Annotated[int, typer.Option(help="Seed of the order of the requests.")] = 0,
) -> int:
    """Send requests to a new server, a tenth of them broken, cancelled or hostile, and check what it did.

    Every other answer must equal that of `vidspec caption`; the server must keep no memory, descriptor or process, and
    end with SIGTERM.
    """
    from vidspec.embedded.samples import shipped

    good = _good_requests([str(clip) for clip in shipped()], profile)
    words = [sys.executable, "-m", "vidspec", "serve", "--port", "0", "--max-waiting", "64", "--profile", profile]
    with subprocess.Popen([*words, *OPTIONS], stderr=subprocess.PIPE, text=True) as server:
        try:
            port = _read_port(server)
            result = asyncio.run(_send(port, server.pid, good, requests, at_once, random.Random(seed)))
            children = _process_ids(server.pid)
            server.send_signal(signal.SIGTERM)
            ended = server.wait(60)
        finally:
            server.kill()
    failures = result.failures()
    failures += [f"exit code {ended}"] if ended else []
    failures += [f"process {one} outlives the server" for one in children if _is_running(one)]
    _show(result, failures)
    return 1 if failures else 0


def _good_requests(clips: Sequence[str], profile: str) -> list[Good]:
    """Return requests with the texts that the command line prints."""
    found = []
    for prompt in PROMPTS:
        for length in LENGTHS:
            words = [*OPTIONS, "--profile", profile, "--prompt", prompt, "--max-new-tokens", str(length), "--quiet"]
            line = [sys.executable, "-m", "vidspec", "caption", *clips, *words, "--format", "jsonl"]
            printed = subprocess.run(line, capture_output=True, text=True, check=True).stdout
            texts = {one["path"]: one["caption"] for one in map(json.loads, printed.splitlines())}
            for clip in clips:
                url = "data:video/mp4;base64," + base64.b64encode(Path(clip).read_bytes()).decode()
                found += [
                    Good(chat_body(url, prompt, max_tokens=length, stream=stream), texts[clip])
                    for stream in (False, True)
                ]
    return found


def chat_body(url: str, prompt: str = "What moves?", **fields: object) -> bytes:
    """Return the body of a request about a video."""
    parts = [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": prompt}]
    return json.dumps({"messages": [{"role": "user", "content": parts}], **fields}).encode()


def _hostile(kind: str, good: bytes) -> bytes:
    """Return the bytes of a hostile request; those of the kinds ``gone...`` are closed early."""
    body = {
        "no JSON": good[: len(good) // 2],
        "nested JSON": b"[" * 50_000,
        "no video": chat_body("data:video/mp4;base64,AAAA"),
        "no base64": chat_body("data:video/mp4;base64,!!!!"),
        "damaged": chat_body("data:video/mp4;base64," + base64.b64encode(os.urandom(1 << 16)).decode()),
        "private address": chat_body("http://169.254.169.254/latest/meta-data"),
        "file": chat_body("file:///etc/passwd"),
        "frame bomb": chat_body("data:video/jpeg;base64,/9j/" + ",AAAA" * 5_000),
        "bad option": good[:-1] + b', "temperature": "hot"}',
        "too long": good[:-1] + b', "max_tokens": 1000000}',
    }.get(kind, good)
    return post_request(body)


METRICS = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
HOSTILE: tuple[str, ...] = (
    "no JSON",
    "nested JSON",
    "no video",
    "no base64",
    "damaged",
    "private address",
    "file",
    "frame bomb",
)
HOSTILE += ("bad option", "too long", "gone in the body", "gone before the answer", "gone in the answer")


def post_request(body: bytes) -> bytes:
    """Return the bytes of a request."""
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def _send(
    port: int, server: int, good: Sequence[Good], requests: int, at_once: int, draw: random.Random
) -> SoakResult:
    """Send all requests, and read the server's usage before and after each part of them."""
    result, began = SoakResult(), time.monotonic()
    for one in good[:4]:  # loads what is loaded with the first requests
        await send_request(port, post_request(one.body))
    result.usage.append(_usage(server))

    async def work(order: Iterator[int]) -> None:
        for number in order:
            one = draw.choice(good)
            if number % 10 == 9:
                kind = HOSTILE[number // 10 % len(HOSTILE)]
                await _attack(port, kind, one, result)
            elif (text := answer_text(await send_request(port, post_request(one.body)))) == one.text:
                result.right += 1
            else:
                result.wrong.append(f"request {number}: {text!r} instead of {one.text!r}")

    for part in range(PARTS):
        order = iter(range(requests * part // PARTS, requests * (part + 1) // PARTS))
        await asyncio.gather(*(work(order) for _ in range(at_once)))
        if not await _is_idle(port, server, result.usage[0]):
            result.wrong.append("requests are still counted, or descriptors or processes left")
        result.usage.append(last := _usage(server))
        sent = requests * (part + 1) // PARTS
        print(f"{sent} requests, {time.monotonic() - began:.0f} s: {last.describe()}", flush=True)
    result.seconds = time.monotonic() - began
    return result


async def _is_idle(port: int, server: int, before: Usage) -> bool:
    """Wait until the server has no request, and no more descriptors and processes than before; False after 10 s."""
    for _ in range(100):
        metrics = (await send_request(port, METRICS)).decode()
        idle = all(f"\nvidspec_{name} 0\n" in metrics for name in ("requests_waiting", "requests_running"))
        now = _usage(server)
        if idle and now.descriptors <= before.descriptors and now.processes <= before.processes:
            return True
        await asyncio.sleep(0.1)
    return False


async def send_request(port: int, request: bytes) -> bytes:
    """Return the whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        return await reader.read()
    except OSError as error:  # refused while the request was still being sent
        return repr(error).encode()
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _attack(port: int, kind: str, one: Good, result: SoakResult) -> None:
    request = _hostile(kind, one.body)
    if not kind.startswith("gone"):
        answer = await send_request(port, request)
        status = answer[9:12].decode(errors="replace")
        result.hostile[f"{kind}: {status}"] += 1
        if not status.startswith("4"):
            result.wrong.append(f"{kind}: {answer[:200]!r}")
        return
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request[: len(request) // 2] if kind == "gone in the body" else request)
    with suppress(OSError):
        await writer.drain()
        if kind == "gone in the answer":
            await reader.read(300)
    writer.transport.abort()
    result.hostile[kind] += 1


def answer_text(answer: bytes) -> str:
    """Return the text of an answer, whole or streamed; the answer itself if it is an error."""
    head, _, content = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        return answer[:300].decode(errors="replace")
    if b"text/event-stream" not in head:
        return str(json.loads(content)["choices"][0]["message"]["content"])
    lines = [json.loads(line) for line in re.findall(rb"^data: (\{.*\})\r?$", content, re.MULTILINE)]
    return "".join(line["choices"][0]["delta"].get("content", "") for line in lines)


def _read_port(server: subprocess.Popen[str]) -> int:
    for line in server.stderr or ():
        if found := re.search(r"serving \S+ at http://\S+:(\d+)/v1", line):
            return int(found[1])
    raise VidspecError("the server has ended before it served")


def _process_ids(parent: int) -> list[int]:
    """Return a process with all below it."""
    found, names = [parent], [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    parents = {}
    for one in names:
        with suppress(OSError):
            parents[one] = int(Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[1])
    for one in found:
        found += [child for child, its in parents.items() if its == one]
    return found


def _is_running(process: int) -> bool:
    return Path(f"/proc/{process}/cmdline").exists() and Path(f"/proc/{process}/cmdline").read_bytes() != b""


def _usage(server: int) -> Usage:
    memory = descriptors = 0
    processes = _process_ids(server)
    for one in processes:
        with suppress(OSError):
            rollup = Path(f"/proc/{one}/smaps_rollup").read_text()
            memory += sum(
                int(size) << 10 for size in re.findall(r"^Pss_(?:Anon|Shmem):\s+(\d+) kB", rollup, re.MULTILINE)
            )
            descriptors += len(os.listdir(f"/proc/{one}/fd"))
    return Usage(memory, descriptors, len(processes))


def _show(result: SoakResult, failures: Sequence[str]) -> None:
    hostile = sum(result.hostile.values())
    print(f"{result.right} right answers, {hostile} hostile requests, {result.seconds:.0f} s")
    for kind, count in sorted(result.hostile.items()):
        print(f"  {kind}: {count}")
    before, warm, after = (result.usage[part].describe() for part in (0, WARM, -1))
    print(f"idle before: {before}; after {WARM / PARTS:.0%} of the requests: {warm}; after all: {after}")
    print("\n".join(f"FAILED {one}" for one in failures) or "all properties hold")


def main(args: Sequence[str] | None = None) -> int:
    """Run the command."""
    return run(command, "soak", args)


if __name__ == "__main__":
    sys.exit(main())
