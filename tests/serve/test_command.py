"""``vidspec serve`` as a process: its address, its end, its page, and the program of its documentation."""

import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from functools import partial
from io import StringIO

import httpx
import pytest

from tests.serve.servers import asked, data_url
from tests.test_readme import PAGES
from vidspec import cli
from vidspec.embedded.samples import shipped


@contextmanager
def running(*options):
    words = ["serve", "--port", "0", "--frames", "4", "--max-new-tokens", "20", "--profile", "vanilla-sd", *options]
    with subprocess.Popen([sys.executable, "-m", "vidspec", *words], stderr=subprocess.PIPE, text=True) as server:
        try:
            for line in server.stderr:
                if found := re.search(
                    r"serving (\S+) at (http://\S+)/v1; the page to try it is \2/ \(Ctrl-C ends\)", line
                ):
                    yield server, found[1], found[2]
                    break
            else:
                pytest.fail("the server has ended")
        finally:
            server.kill()


def _taken(url, headers):
    """Requests that the server has taken and not answered."""
    counters = httpx.get(f"{url}/metrics", headers=headers).text
    return sum(map(int, re.findall(r"^vidspec_requests_(?:waiting|running) (\d+)$", counters, re.MULTILINE)))


@pytest.mark.full
def test_a_server_and_its_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clip.mp4").write_bytes(shipped()[0].read_bytes())
    (tmp_path / "key").write_text("geheim\n")
    with running("--api-key", "key") as (server, model, url):
        assert model == "embedded"  # the pair's name, not its folder's
        assert httpx.get(f"{url}/v1/models").status_code == 401
        (program,) = re.findall(r"```python\n(.*?)```", PAGES["serve"], re.DOTALL)
        program = program.replace("http://127.0.0.1:8000", url).replace('"none"', '"geheim"')
        with redirect_stdout(StringIO()) as printed:
            exec(compile(program, "docs/use/serve.md", "exec"), {})
        words = [
            "caption",
            "clip.mp4",
            "--profile",
            "vanilla-sd",
            "--frames",
            "4",
            "--max-new-tokens",
            "100",
            "--quiet",
        ]
        with redirect_stdout(StringIO()) as captioned:
            assert cli.main(words) == 0
        assert printed.getvalue().strip() in captioned.getvalue() and len(printed.getvalue()) > 20
        body = {**asked(data_url(shipped()[0])), "model": model, "stream": True}
        headers = {"authorization": "Bearer geheim"}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            with ThreadPoolExecutor(3) as pool:
                post = partial(httpx.post, json={**body, "stream": False}, headers=headers, timeout=60)
                others = [pool.submit(post, f"{url}/v1/chat/completions") for _ in range(3)]
                while (left := [other for other in others if not other.done()]) and _taken(url, headers) <= len(left):
                    pass  # one that has not arrived when the server ends is refused
                server.send_signal(signal.SIGTERM)
                assert [line for line in lines if line][-1] == "data: [DONE]"
                assert [other.result().status_code for other in others] == [200] * 3
        assert server.wait(60) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--host", "no.such.host.invalid"), "--host no.such.host.invalid --port 8000: "),
        (("--host", "no.such.host.invalid"), "(name an address of this machine)"),
        (("--allow-media-domain", "*"), "--allow-media-domain *: must be a host"),
        (("--allow-media-domain", "file:///etc"), "must be SCHEME://HOST"),
        (("--allow-local-media", "nowhere"), "--allow-local-media nowhere: there is no such folder"),
        (("--max-media", "big"), "--max-media big: must be a size"),
        (("--keep-videos", "some"), "--keep-videos some: must be a size"),
        (("--batch", "0"), "--batch 0: must be auto or a number"),
        (("--prompt", "What?", "--prompt", "Where?"), "--prompt is given 2 times, and serve takes one"),
    ],
)
def test_options_that_are_refused(options, message, capfd):
    assert cli.main(["serve", "--port", "0", *options] if "--host" not in options else ["serve", *options]) == 2
    assert message in capfd.readouterr().err


def test_a_review_asks_one_prompt(capfd):
    assert cli.main(["review", str(shipped()[0]), "--prompt", "What?", "--prompt", "Where?"]) == 2
    assert "--prompt is given 2 times, and review takes one" in capfd.readouterr().err


@pytest.mark.parametrize(("command", "said"), [("serve", "where a request has no text"), ("review", "captioned again")])
def test_the_help_of_a_prompt_is_the_commands_own(command, said, capsys):
    assert cli.main([command, "--help"]) == 0
    found = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert said in found and "manifest's column" not in found.partition("--prompt ")[2].partition("--max-new-tokens")[0]


@pytest.mark.full
def test_a_review_and_its_end(tmp_path):
    """Its models are loaded by the first caption that is asked for, and its address is nobody else's."""
    (tmp_path / "clip.mp4").write_bytes(shipped()[0].read_bytes())
    words = [sys.executable, "-m", "vidspec", "review", "clip.mp4", "--frames", "2", "--max-new-tokens", "4"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as server:
        try:
            line = next(server.stderr)
            url = re.search(r"reviewing at (http://127\.0\.0\.1:\d+/[\w-]{30,}/) \(Ctrl-C ends\)", line)[1]
            assert "clip.mp4" in httpx.get(url).text and httpx.get(url.rsplit("/", 2)[0]).status_code == 404
            answer = httpx.post(f"{url}clips/1/again", json={"prompt": "Describe this video."}, timeout=60)
            assert answer.status_code == 200 and answer.json()["text"].startswith("[demo] ")
            saved = httpx.post(f"{url}clips/1/save", json={"text": "By hand.", "version": ""})
            assert saved.json()["state"] == "foreign" and (tmp_path / "clip.txt").read_text() == "By hand.\n"
            server.send_signal(signal.SIGINT)
            said = server.stderr.read()
            assert server.wait(60) == 0, said
            assert "loading the built-in models" in said
        finally:
            server.kill()
