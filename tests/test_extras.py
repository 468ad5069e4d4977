"""Each extra by itself: its command where nothing is installed but the requirements of vidspec and of that extra."""

import json
import os
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.linked_environment import PROJECT, ROOT, make_environment
from tests.research.pareto.test_pareto import everything
from tests.serve.servers import asked, data_url
from vidspec.embedded.samples import shipped

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(sys.platform == "win32", reason="links packages into an environment"),
]

CLIP = shipped()[0]
FEW = ("--profile", "ar", "--frames", "2", "--set", "models.threads=1", "--quiet")
PLOT = """
from pathlib import Path
from research.pareto.outcome import outcome
from research.pareto.plot import draw
from vidspec.bench.results import read_results
draw(outcome(read_results(Path("pareto.json"))), Path("pareto.svg"))
"""
#: Extras without a test here: for a checkout, for GPUs, or larger than vidspec itself.
LARGE = {"docs", "flash-attn", "lmms-eval", "quantization", "ray", "test"}


@pytest.fixture
def environment(tmp_path, request):
    """A function that runs Python, in a folder of the test, with the packages of an extra only."""
    python = make_environment(tmp_path / "environment", request.param)
    own = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "XDG_CONFIG_HOME": str(tmp_path)}
    start = partial(subprocess.Popen, cwd=tmp_path, env={**os.environ, **own}, text=True, stderr=subprocess.PIPE)
    return lambda *words, **options: start([python, *words], **options)


def run(environment, *words):
    process = environment(*words, stdout=subprocess.PIPE)
    out, err = process.communicate()
    assert "Traceback" not in err, err
    return process.returncode, out, err


@pytest.fixture
def web(tmp_path):
    """The address of a web server of the folder ``web``."""
    (tmp_path / "web").mkdir()

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path / "web")))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def only(extra):
    return pytest.mark.parametrize("environment", [extra], indirect=True, ids=[extra or "none"])


def test_all_extras_are_tested():
    tested = set(re.findall(r'^@only\("(\w+)"\)', Path(__file__).read_text(), re.MULTILINE))
    assert tested | LARGE == {*PROJECT["optional-dependencies"]} and not tested & LARGE


@only("")
def test_no_extra(environment, web):
    found = run(environment, "-c", "import importlib.util as u; print(u.find_spec('pytest'), u.find_spec('aiohttp'))")
    assert found[:2] == (0, "None None\n")
    assert run(environment, "-m", "vidspec", "caption", CLIP, *FEW, "--max-new-tokens", "4")[0] == 0
    for words, name in (
        (("serve",), "pip install aiohttp starlette uvicorn"),
        (("review", CLIP), "pip install aiohttp starlette uvicorn"),
        (("caption", f"{web}/a.tar", "--output-dir", "out"), "pip install pyarrow"),
        (("caption", CLIP, "--json"), "pip install llguidance"),
        (("caption", CLIP, "--segment", "scenes"), "pip install scenedetect"),
    ):
        code, _, err = run(environment, "-m", "vidspec", *words)
        assert code == 2 and name in err, err


@only("serve")
def test_serve(environment, web, tmp_path):
    (tmp_path / "web" / "clip.mp4").write_bytes(CLIP.read_bytes())
    words = ("-m", "vidspec", "serve", "--port", "0", *FEW[:-1], "--max-new-tokens", "4")

    def answer(address, url):
        body = json.dumps({**asked(url), "model": None}).encode()
        request = Request(f"{address}/v1/chat/completions", body, {"Content-Type": "application/json"})
        try:
            return urlopen(request).status
        except HTTPError as error:
            return error.code

    for more, fetched in (((), 400), (("--allow-media-domain", web), 200)):
        server = environment(*words, *more)
        address = next(found[1] for line in server.stderr if (found := re.search(r"at (http://\S+)/v1", line)))
        try:
            assert answer(address, data_url(CLIP)) == 200
            assert answer(address, f"{web}/clip.mp4") == fetched
            assert answer(address, "http://example.invalid/clip.mp4") == 400
        finally:
            server.terminate()
            rest = server.stderr.read()
        assert server.wait() == 0 and "Traceback" not in rest


@only("data")
def test_data(environment, web, tmp_path):
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    (tmp_path / "web" / "clip.mp4").write_bytes(CLIP.read_bytes())
    parquet.write_table(pyarrow.table({"video": [f"{web}/clip.mp4"]}), tmp_path / "00000.parquet")
    words = ("--column", "video", "--allow-urls", web, "--output-dir", "out", *FEW, "--max-new-tokens", "4")
    code, _, err = run(environment, "-m", "vidspec", "caption", "00000.parquet", *words)
    assert code == 0 and (tmp_path / "out" / "00000.parquet").stat().st_size, err


@only("json")
def test_json(environment):
    schema = {"type": "object", "properties": {"n": {"enum": [1]}}, "required": ["n"], "additionalProperties": False}
    words = ("--json-schema", json.dumps(schema), "--format", "json", *FEW, "--max-new-tokens", "30")
    code, out, err = run(environment, "-m", "vidspec", "caption", CLIP, *words)
    assert code == 0 and json.loads(out)["data"] == {"n": 1}, err


@only("scenes")
def test_scenes(environment):
    code, out, err = run(
        environment, "-m", "vidspec", "caption", CLIP, "--segment", "scenes", *FEW, "--max-new-tokens", "4"
    )
    assert code == 0 and out, err


@only("split")
def test_split(environment):
    words = ("--set", "models.device_map=auto", *FEW, "--max-new-tokens", "4")
    code, out, err = run(environment, "-m", "vidspec", "caption", CLIP, *words)
    assert code == 0 and out, err


@only("plots")
def test_plots(environment, tmp_path):
    (tmp_path / "pareto.json").write_text(json.dumps(everything()), encoding="utf-8")
    code, _, err = run(environment, "-c", PLOT)
    assert code == 0 and (tmp_path / "pareto.svg").exists(), err
