"""The recipes of docs/use/serve.md for SLURM, systemd and Docker, run without these: with a server and a client."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from contextlib import suppress

import httpx
import pytest

from tests.serve.servers import asked, data_url
from tests.test_readme import PAGES, ROOT
from vidspec.embedded.samples import shipped

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="SLURM, systemd and Docker run Linux")

#: Added to the command of a recipe, so that it answers soon.
FEW = ["--frames", "2", "--max-new-tokens", "6", "--profile", "vanilla-sd"]
CLIENT = """
import json, sys, urllib.request
request = urllib.request.Request(URL, open("body.json", "rb").read(), {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""


def recipe(language, has):
    (found,) = [text for text in re.findall(rf"```{language}\n(.*?)```", PAGES["serve"], re.DOTALL) if has in text]
    return found


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def batch_job(tmp_path):
    """Runs the script as `sbatch` does, with the commands that it names; the job's result."""
    port, commands = free_port(), tmp_path / "bin"
    commands.mkdir()
    for name, words in (("vidspec", [sys.executable, "-m", "vidspec"]), ("python", [sys.executable])):
        (commands / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (commands / name).chmod(0o755)
    (tmp_path / "my_clients.py").write_text(CLIENT.replace("URL", f'"http://127.0.0.1:{port}/v1/chat/completions"'))
    (tmp_path / "body.json").write_text(json.dumps({**asked(data_url(shipped()[0])), "model": None}))

    def run(*options):
        text = recipe("sh", "#SBATCH").replace("8000", str(port))
        script = text.replace("vidspec serve", shlex.join(["vidspec", "serve", *options]))
        path = os.pathsep.join((str(commands), os.environ["PATH"]))
        return subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
        )

    return run


@pytest.mark.full
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_a_slurm_job(batch_job):
    job = batch_job(*FEW)
    assert job.returncode == 0, job.stderr
    assert re.fullmatch(r'\{"status":"ok"\}.+\n', job.stdout)
    assert batch_job("--profile", "none-such").returncode == 1  # it does not wait for a server that has ended


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_a_unit_of_systemd(tmp_path):
    unit = recipe("ini", "ExecStart")
    (tmp_path / "vidspec.service").write_text(re.sub(r"(?<=ExecStart=)\S+", sys.executable, unit))
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "vidspec.service")], capture_output=True, text=True
    )
    assert (verified.returncode, verified.stderr) == (0, "")  # unknown keys are warnings


def test_the_lines_of_a_dockerfile():
    lines = recipe("dockerfile", "FROM").splitlines()
    assert {line.split()[0] for line in lines} <= {"FROM", "RUN", "USER", "EXPOSE", "ENTRYPOINT"}
    image, base = lines[0].removeprefix("FROM "), (ROOT / "Dockerfile.cuda").read_text()
    assert f"--tag {image} ." in base and "useradd --create-home vidspec" in base and "gcc" in base
    serve = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["serve"]
    assert all(re.split("[<>=]", one)[0] in lines[2].split() for one in serve)
    assert json.loads(lines[-1].removeprefix("ENTRYPOINT "))[0] == "vidspec"
    for line in lines:
        if line.startswith("RUN "):
            subprocess.run(["bash", "-n", "-c", line.removeprefix("RUN ")], check=True)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["systemd", "docker"])
def test_the_command_of_a_service(kind, tmp_path):
    (tmp_path / "key").write_text("geheim\n")
    if kind == "systemd":
        words = shlex.split(re.search("ExecStart=(.*)", recipe("ini", "ExecStart"))[1].replace("%d", str(tmp_path)))
    else:
        words = json.loads(recipe("dockerfile", "FROM").splitlines()[-1].removeprefix("ENTRYPOINT "))
        words[-1] = words[-1].replace("/run/secrets", str(tmp_path))
    assert words[0].endswith("vidspec")
    port = free_port()
    command = [sys.executable, "-m", "vidspec", *words[1:], *FEW, "--port", str(port)]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client, subprocess.Popen(command) as server:
        try:
            while server.poll() is None:
                with suppress(httpx.ConnectError):
                    assert client.get("/health").json() == {"status": "ok"}
                    break
                time.sleep(0.1)
            assert client.get("/v1/models").status_code == 401
            client.headers["authorization"] = "Bearer geheim"
            body = {**asked(data_url(shipped()[0])), "model": None}
            assert client.post("/v1/chat/completions", json=body).json()["usage"]["completion_tokens"] == 6
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
        finally:
            server.kill()
