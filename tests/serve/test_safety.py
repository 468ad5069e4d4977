"""Hostile requests: nothing that is not allowed is fetched or read, and no answer names a path or an address."""

import errno
import io
import os
import re
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest.mock import Mock

import httpx
import pytest
from PIL import Image

from tests.serve.servers import asked, data_url, serving
from vidspec.embedded.samples import shipped

CLIP = shipped()[0]


class Media(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.seen.append(self.path)
        name, _, rest = self.path[1:].partition("?")
        content = CLIP.read_bytes() * (400 if name == "long.mp4" else 1)
        self.send_response({"to": 302, "gone": 404}.get(name, 200))
        if name == "to":
            self.send_header("Location", rest)
        elif name != "long.mp4":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if name.endswith(".mp4"):
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def hosts():
    """Two web servers of this machine: an allowed one, and one that must not be reached."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Media) for _ in range(2)]
    for one in servers:
        one.seen = []
        threading.Thread(target=one.serve_forever, args=(0.02,), daemon=True).start()
    yield servers
    for one in servers:
        one.shutdown()
        one.server_close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.mp4").write_bytes(CLIP.read_bytes())
    inside = tmp_path_factory.mktemp("media")
    (inside / "clip.mp4").write_bytes(CLIP.read_bytes())
    (inside / "text.mp4").write_text("no video")
    (inside / "link.mp4").symlink_to(outside / "secret.mp4")
    os.mkfifo(inside / "pipe.mp4")
    return inside


@pytest.fixture(scope="module")
def url(captioner, hosts, folder):
    settings = {"media_hosts": (f"http://127.0.0.1:{hosts[0].server_port}", "localhost"), "media_folder": str(folder)}
    limits = {"max_bytes": 1 << 20, "max_frames": 16, "max_seconds": 60.0}
    with serving(captioner, **settings, **limits) as (url, _):
        yield url


def ask(url, body, **headers):
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60)


def told(answer, *secrets):
    """The message of an error, which names none of the secrets."""
    message = answer.json()["error"]["message"]
    places = (tempfile.gettempdir(), "/proc/", "pytest-", "127.0.0.1", "10.0.0", "169.254", *secrets)
    assert not [one for one in places if one in message], message
    assert not re.search("0x[0-9a-f]{4}", message), "an address in memory"
    return message


@pytest.mark.full
def test_allowed_media_are_read(url, hosts, folder, captioner):
    expected = captioner.caption(CLIP).caption
    allowed = f"http://127.0.0.1:{hosts[0].server_port}"
    for media in (f"{allowed}/clip.mp4", f"{allowed}/to?/clip.mp4", f"file://{folder}/clip.mp4"):
        answer = ask(url, asked(media))
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == expected


def test_forbidden_urls(url, hosts):
    allowed, other = (f"127.0.0.1:{one.server_port}" for one in hosts)
    hosts[1].seen.clear()
    forbidden = [
        f"http://{other}/clip.mp4",
        f"http://{allowed}/to?http://{other}/clip.mp4",
        f"http://{allowed}/to?//{other}/clip.mp4",
        f"http://{allowed}/to?file:///etc/passwd",
        f"http://{allowed}\\@{other}/clip.mp4",
        f"http://{other}\\@{allowed}/clip.mp4",
        f"http://{allowed}@{other}/clip.mp4",
        f"http://{other}#@{allowed}/clip.mp4",
        f"http://{allowed}%2f@{other}/clip.mp4",
        f"http://{allowed}\t.{other}/clip.mp4",
        "http://169.254.169.254/latest/meta-data",
        "http://[::ffff:127.0.0.1]/clip.mp4",
        "http://2130706433/clip.mp4",
        "https://[",
        "ftp://localhost/clip.mp4",
        "gopher://localhost",
        "concat:/etc/passwd",
        "/etc/passwd",
    ]
    for media in forbidden:
        answer = ask(url, asked(media))
        assert answer.status_code == 400, media
        told(answer, other)
        assert answer.json()["error"]["param"] == "messages[0].content[0]"
    assert hosts[1].seen == []


def test_forbidden_urls_need_no_package(captioner, monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.setitem(sys.modules, "yarl", None)
    with serving(captioner) as (closed, _):
        for media in ("http://example.com/clip.mp4", "https://[", "http://localhost\\@127.0.0.1/"):
            answer = ask(closed, asked(media))
            assert answer.status_code == 400 and "may not be fetched" in told(answer)


def test_a_host_of_that_name_with_a_private_address_is_not_reached(url):
    assert "could not be fetched" in told(ask(url, asked("http://localhost/clip.mp4")))


@pytest.mark.parametrize("name", ["gone", "long.mp4", "to?/to", "to?/gone"])
def test_what_a_web_server_answers(url, hosts, name):
    name = "to?/to?/to?/to?/to?/to?/to?/clip.mp4" if name == "to?/to" else name
    answer = ask(url, asked(f"http://127.0.0.1:{hosts[0].server_port}/{name}"))
    assert answer.status_code == (413 if name == "long.mp4" else 400)
    told(answer)


def test_forbidden_files(url, folder):
    messages = set()
    for path in ("/etc/passwd", f"{folder}/link.mp4", f"{folder}/../x.mp4", f"{folder}/%2e%2e/x", f"{folder}/pipe.mp4"):
        answer = ask(url, asked(f"file://{path}"))
        assert answer.status_code == 400
        messages.add(told(answer))
    odd = ("file://[", "file://[::1", "file://]/x", "file:", "file://%", f"file://{'x' * 5000}", "file:////[/a]")
    missing = (f"file://{folder}/none.mp4", f"file://{folder}", f"file://host{folder}/clip.mp4", "file:///%00")
    for media in (*missing, *odd):
        answer = ask(url, asked(media))
        assert answer.status_code == 400, media
        messages.add(told(answer))
    assert len(messages) == 1, "whether a file exists is not told"


def test_a_full_disk_and_a_file_that_goes_are_no_bugs(url, folder, monkeypatch, capfd):
    full = OSError(errno.ENOSPC, "No space left on device")
    for media, patched in ((data_url(CLIP), "mkstemp"), (f"file://{folder}/clip.mp4", "_digest")):
        with monkeypatch.context() as patch:
            patch.setattr(f"vidspec.serve.media.{patched}", Mock(side_effect=full))
            answer = ask(url, asked(media))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage")
        assert told(answer).endswith("cannot store or read this file now: No space left on device")
    assert "Traceback" not in capfd.readouterr().err and ask(url, asked(data_url(CLIP))).status_code == 200


def test_damaged_media_are_errors_without_paths(url, folder):
    file = io.BytesIO()
    Image.new("RGB", (32, 32)).save(file, "JPEG2000")
    jpeg2000 = (data_url(file.getvalue(), kind) for kind in ("video/mp4", "image/jp2", "video/jpeg"))
    for media in (f"file://{folder}/text.mp4", data_url(b"no video"), data_url(b"GIF89a", "image/png"), *jpeg2000):
        answer = ask(url, asked(media))
        assert answer.status_code == 400 and told(answer).startswith("messages[0].content[0]")
        pictures = ask(url, asked(media, kind="image_url"))
        assert pictures.status_code == 400 and told(pictures).startswith("messages[0].content")
    assert ask(url, asked(data_url(CLIP))).status_code == 200


def test_no_media_are_fetched_unless_allowed(captioner, hosts, folder):
    with serving(captioner) as (url, _):
        for media in (f"http://127.0.0.1:{hosts[0].server_port}/clip.mp4", f"file://{folder}/clip.mp4"):
            assert "may not be" in told(ask(url, asked(media)))


def test_bombs(url):
    frame = data_url(b"\xff\xd8", "video/jpeg")
    many = told(ask(url, asked(",".join([frame, *["AAAA"] * 10_000]))))
    assert "more than 16 frames" in many
    assert ask(url, asked(",".join([frame, *["AAAA"] * 100_000]))).status_code == 413
    urls = [data_url(b"x", "image/png")] * 17
    assert "more than 16 frames" in told(ask(url, asked(*urls, kind="image_url")))
    fast = ask(url, asked(data_url(CLIP), mm_processor_kwargs={"fps": 900}))
    assert "frames are more than 16" in told(fast)
    assert ask(url, asked(data_url(b"0" * (1 << 20) + b"0" * 9))).status_code == 413
    assert ask(url, asked(data_url(b"0" * (3 << 20)))).status_code == 413


def test_large_pictures_and_long_clips_are_not_decoded(captioner, tmp_path):
    file = io.BytesIO()
    Image.new("L", (3000, 3000)).save(file, "png")
    picture = asked(data_url(file.getvalue(), "image/png"), kind="image_url")
    with serving(captioner, max_pixels=1 << 22, max_seconds=0.5) as (url, _):
        assert "pictures of 9000000 pixels" in told(ask(url, picture))
        assert "lasts more than 0.5 s" in told(ask(url, asked(data_url(CLIP))))


def test_bodies_and_headers_are_bounded(url):
    chat = f"{url}/v1/chat/completions"

    def refused(send):
        try:
            return send().status_code in (400, 413, 431)
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):  # closed while the client still sends
            return True

    def pieces():
        for _ in range(128):
            yield b" " * (1 << 16)

    assert refused(lambda: httpx.post(chat, content=pieces(), headers={"content-type": "application/json"}))
    assert refused(lambda: httpx.get(f"{url}/health", headers={"x": "a" * (1 << 18)}))
    assert httpx.get(f"{url}/health").status_code == 200


def test_a_key_guards_all_but_health(captioner):
    with serving(captioner, api_key="geheim") as (url, _):
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("GET", "/v1/models"),
            ("GET", "/metrics"),
            ("GET", "/"),
            ("GET", f"/samples/{CLIP.name}"),
            ("POST", "/v1/batches"),
            ("POST", "/invocations"),
        ):
            for authorization in (None, "Bearer wrong", "Bearer", "geheim", "Basic !!", "Bearer geheimer"):
                headers = {} if authorization is None else {"authorization": authorization}
                assert httpx.request(method, f"{url}{path}", headers=headers).status_code == 401
        assert httpx.get(f"{url}//v1/models").status_code == httpx.get(f"{url}/health/../metrics").status_code == 401
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/v1/models", headers={"authorization": "Bearer geheim"}).status_code == 200
        assert httpx.get(f"{url}/", auth=("any", "geheim")).status_code == 200


def test_pages_of_other_hosts_are_refused(url):
    for host in ("evil.example", "testserver", "127.0.0.1.evil.example", "localhost.", "user@localhost", ""):
        assert httpx.get(f"{url}/v1/models", headers={"host": host}).status_code == 403
    assert ask(url, asked(data_url(CLIP)), origin="http://evil.example").status_code == 403
    assert httpx.get(f"{url}/v1/models", headers={"origin": url}).status_code == 200
