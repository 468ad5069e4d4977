"""Clips and shards behind URLs: bounded in time and bytes, failures by name, and only from where the user allows."""

import json
import socket
import ssl
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.runs.shards import CLIP, tar_of
from vidspec.errors import UsageError, VideoError
from vidspec.runs import stores
from vidspec.runs.access import Access, GuardedClient, PrivateAddressError, check_allowed_url
from vidspec.runs.allowance import FetchLimits
from vidspec.runs.executors.replicas import ReplicaExecutor
from vidspec.runs.job import Job
from vidspec.runs.sources.base import ClipOpener, shard_members
from vidspec.runs.stores import copy

pytest.importorskip("aiohttp")
TAR = tar_of({f"{n}.mp4": bytes([n]) * 200_000 for n in range(3)})


class Server(BaseHTTPRequestHandler):
    """Paths say what becomes of a request."""

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        kind = self.path.strip("/").split(".")[0]
        self.server.seen.append(self.path)
        with suppress(OSError):  # whoever asked has gone
            getattr(self, kind, self.missing)()

    def head(self, status=200, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def missing(self):
        self.head(404, Content_Length=0)

    def broken(self):
        self.head(500, Content_Length=0)

    def hang(self):
        self.server.over.wait(600)

    def stall(self):
        self.head(Content_Length=1 << 20)
        self.wfile.write(b"x" * 1000)
        self.server.over.wait(600)

    def trickle(self):
        self.head()
        while not self.server.over.wait(0.02):
            self.wfile.write(b"x")

    def endless(self):
        self.head(206 if "Range" in self.headers else 200, Content_Type="video/mp4")
        while not self.server.over.is_set():
            self.wfile.write(bytes(1 << 16))

    def large(self):
        self.head(Content_Length=1 << 40)

    def away(self):
        self.head(302, Location=self.server.elsewhere, Content_Length=0)

    def good(self):
        first, last = 0, len(TAR) - 1
        if "Range" in self.headers:
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        content = TAR[first : last + 1]
        self.head(206 if "Range" in self.headers else 200, Content_Length=len(content))
        if self.command == "GET":
            self.wfile.write(content)

    def clip(self):
        self.head(Content_Length=len(CLIP))
        if self.command == "GET":
            self.wfile.write(CLIP)

    def whole(self):
        self.head(Content_Length=len(TAR))
        if self.command == "GET":
            self.wfile.write(TAR)

    def lying(self):
        """A file of some size, of which a piece never ends."""
        if self.command == "HEAD":
            self.head(Content_Length=1 << 30)
        else:
            self.endless()


@contextmanager
def serving():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.daemon_threads, server.seen, server.over = True, [], threading.Event()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stores, "PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(stores, "CLOSING", 0.2)


@pytest.fixture
def server():
    with serving() as made:
        yield made


def fetched(url, *, named=(), **limits):
    access = Access(urls=tuple(named)).with_typed(url)
    copy(url, Path("out"), limits=FetchLimits(access=access, **limits))
    return Path("out").read_bytes()


def failure(url, **limits):
    began = time.monotonic()
    with pytest.raises(VideoError) as caught:
        fetched(url, **limits)
    assert time.monotonic() - began < 60
    assert caught.value.message.startswith(f"{url}: ") and len(str(caught.value).splitlines()) == 1
    return caught.value


def test_what_a_server_gives(server):
    _, url = server
    assert fetched(f"{url}/good.mp4") == TAR == fetched(f"{url}/whole.mp4")
    found = shard_members(Job(f"{url}/good.tar"))
    assert [job.path for job in found] == [f"{url}/good.tar/{n}.mp4" for n in range(3)]
    files = ClipOpener(FetchLimits(access=Access().with_typed(url)))
    with files.local(found[1]) as file:
        assert Path(file).read_bytes() == bytes([1]) * 200_000


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("kind", ["hang", "stall", "trickle"])
def test_a_timeout_holds_for_a_clip(server, kind):
    error = failure(f"{server[1]}/{kind}.mp4", timeout=0.4)
    assert error.kind == "timeout" and "not fetched within 0.4 s" in error.message and error.hint == "raise --timeout"


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("kind", ["hang", "stall", "trickle"])
def test_without_a_timeout_a_store_that_stalls_is_an_error(server, kind, monkeypatch):
    monkeypatch.setattr("vidspec.runs.allowance.STALLED", 0.4)
    error = failure(f"{server[1]}/{kind}.mp4")
    assert error.kind == "timeout" and "the store sent nothing for 0.4 s" in error.message


def test_a_clip_that_never_ends(server):
    error = failure(f"{server[1]}/endless.mp4", most=1 << 20)
    assert error.kind == "too_large" and "has more than 1 MiB" in error.message and error.hint == "raise --max-fetch"
    assert Path("out").stat().st_size <= 8 << 20
    error = failure(f"{server[1]}/large.mp4", most=1 << 20)
    assert error.kind == "too_large"


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("kind", ["hang", "stall", "lying"])
def test_a_shard_that_hangs_or_never_ends(server, kind):
    began = time.monotonic()
    limits = FetchLimits(timeout=0.5, most=1 << 20, access=Access())
    with pytest.raises(VideoError):
        shard_members(Job(f"{server[1]}/{kind}.tar"), limits=limits)
    assert time.monotonic() - began < 60


def test_a_member_may_be_only_so_large(server):
    found = shard_members(Job(f"{server[1]}/good.tar"))
    Path("local.tar").write_bytes(TAR)
    for job in (found[0], shard_members(Job("local.tar"))[0]):
        files = ClipOpener(FetchLimits(most=1000, access=Access().with_typed(server[1])))
        with pytest.raises(VideoError, match="has more than 1000 bytes") as caught, files.local(job):
            pass
        assert caught.value.kind == "too_large" and caught.value.message.startswith(job.path)


def test_failures_are_named(server):
    _, url = server
    assert "the server answered 500" in failure(f"{url}/broken.mp4").message
    assert failure(f"{url}/missing.mp4").kind == "missing"
    for kind, said in (("broken", "the server answered 500"), ("missing", "there is no such file")):
        with pytest.raises(VideoError, match=said):
            shard_members(Job(f"{url}/{kind}.tar"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{free.getsockname()[1]}"  # nobody listens there
        assert failure(f"{gone}/a.mp4").message.endswith("cannot be read (4 attempts): the connection was refused")
        with pytest.raises(VideoError, match="the connection was refused"):
            shard_members(Job(f"{gone}/a.tar"))


def test_a_redirect_to_a_private_address(server):
    one, url = server
    with serving() as (other, elsewhere):
        one.elsewhere = f"{elsewhere}/good.mp4"
        error = failure(f"{url}/away.mp4")
        assert error.kind == "refused" and "is not a public address" in error.message and not other.seen
        assert fetched(f"{url}/away.mp4", named=(elsewhere,)) == TAR


@pytest.fixture
def certificate(tmp_path):
    """A certificate for this machine, signed by itself, and its key in one file."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name, now = ec.generate_private_key(ec.SECP256R1()), x509.Name([]), datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1)).sign(
        key, hashes.SHA256()
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = tmp_path / "certificate.pem"
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file


def test_a_redirect_from_https_to_http(certificate, server, monkeypatch):
    """An encrypted connection stays so, unless the user named the other server."""
    import aiohttp

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", aiohttp.connector._SSL_CONTEXT_UNVERIFIED)
    plain, elsewhere = server
    with serving() as (secure, url):
        secure.socket = context.wrap_socket(secure.socket, server_side=True)
        url = url.replace("http://", "https://")
        assert fetched(f"{url}/good.mp4") == TAR
        secure.elsewhere = f"{elsewhere}/good.mp4"
        error = failure(f"{url}/away.mp4")
        assert error.kind == "refused" and f"leads to {elsewhere}, without encryption" in error.message
        assert error.hint.startswith(f"give --allow-urls {elsewhere} if") and not plain.seen
        assert fetched(f"{url}/away.mp4", named=(elsewhere,)) == TAR
        secure.elsewhere = f"{url}/good.mp4"
        assert fetched(f"{url}/away.mp4") == TAR, "to https"


def test_addresses():
    guard = GuardedClient(("http://127.0.0.1:8000", "https://*"))
    for host, port in (("93.184.216.34", 80), ("2606:2800:220:1::1", 443), ("127.0.0.1", 8000)):
        guard.check(host, port)
    private = ["127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "::1", "fe80::1%eth0", "::ffff:10.0.0.1"]
    for host in (*private, "0.0.0.0", "100.64.0.1", "fd00::1", "224.0.0.1"):
        with pytest.raises(PrivateAddressError, match="is not public"):
            guard.check(host, 443)


def test_a_name_with_private_addresses(server):
    """``localhost`` has two of them on most machines."""
    access = Access(urls=("http://*",))
    url = f"http://localhost:{server[0].server_port}/good.mp4"
    with pytest.raises(VideoError, match="is not a public address") as caught:
        copy(url, Path("out"), limits=FetchLimits(access=access))
    assert caught.value.kind == "refused" and not server[0].seen


def rows_of(path, names):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"path": names}), path)


def test_paths_below_the_folder_only(tmp_path):
    for name in ("in/d", "out"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("in/a.mp4", "in/d/b.mp4", "out/c.mp4"):
        Path(name).write_bytes(b"x")
    Path("in/link.mp4").symlink_to("../out/c.mp4")
    Path("in/inner.mp4").symlink_to("d/b.mp4")
    inside = ["a.mp4", "d/../a.mp4", "inner.mp4", str(tmp_path / "in/d/b.mp4")]
    outside = ["../out/c.mp4", "link.mp4", str(tmp_path / "out/c.mp4"), "/etc/passwd", "d/../../out/c.mp4"]
    rows_of("in/v.parquet", inside + outside)
    found = shard_members(Job("in/v.parquet"))
    assert [job.error is None for job in found] == [True] * len(inside) + [False] * len(outside)
    assert {job.error.kind for job in found[len(inside) :]} == {"refused"}
    assert found[4].error.hint == f"give --allow-paths {tmp_path / 'out'} if it may be read"
    allowed = shard_members(Job("in/v.parquet"), limits=FetchLimits(access=Access(paths=("out",))))
    assert [job.path for job in allowed if job.error is not None] == ["in/v.parquet/00007"]


@pytest.mark.parametrize(
    ("shard", "name", "found"),
    [
        ("https://h.org/d/v.parquet", "a.mp4", "https://h.org/d/a.mp4"),
        ("https://h.org/d/v.parquet", "/x/a.mp4", "https://h.org/d/x/a.mp4"),
        ("https://h.org/d/v.parquet", "https://other.org/a.mp4", "https://other.org/a.mp4"),
        ("s3://b/d/v.parquet", "x/../a.mp4", "s3://b/d/a.mp4"),
        ("s3://b/d/v.parquet", "../a.mp4", None),
        ("https://h.org/d/v.parquet", "%2e%2e/a.mp4", None),
        ("https://h.org/d/v.parquet", "x/%252e%252E/../../a.mp4", None),
        ("https://h.org/d/v.parquet", "..\\a.mp4", None),
        ("https://h.org/d/v.parquet", "a::b.mp4", None),
        ("https://h.org/d/v.parquet", "http://other.org/a.mp4", None),
        ("s3://b/v.parquet", "https://h.org/a.mp4", None),
        ("v.parquet", "https://h.org/a.mp4", None),
        ("v.parquet", "file:///etc/passwd", None),
        ("file:///d/v.parquet", "file:///etc/passwd", None),
        ("v.parquet", "local:///etc/passwd", None),
        ("github://o:r@main/v.parquet", "github://o:r@main/a.mp4", None),
        ("ssh://h/v.parquet", "ssh://h/a.mp4", None),
        ("https://h.org/v.parquet", "simplecache::https://h.org/a.mp4", None),
        ("https://h.org/v.parquet", "https://h.org/a::file:///etc/passwd", None),
        ("https://h.org/v.parquet", "https://user:word@h.org/a.mp4", None),
        ("https://h.org/v.parquet", "https://h.org\\@evil.org/a.mp4", None),
        ("https://h.org/v.parquet", " https://h.org/a.mp4", None),
    ],
)
def test_urls_in_rows(shard, name, found):
    if found is not None:
        assert Access().locate(shard, name) == found
        return
    with pytest.raises(VideoError) as caught:
        Access().locate(shard, name)
    assert caught.value.kind == "refused" and caught.value.message.startswith(f"{shard}: a row names ")


def test_urls_that_are_allowed():
    access = Access(urls=("https://h.org", "s3://*"))
    for name in ("https://h.org/a.mp4", "HTTPS://H.org/a.mp4", "s3://any/a.mp4"):
        assert access.locate("v.parquet", name) == name
    for name in ("http://h.org/a.mp4", "https://h.org:81/a.mp4", "https://h.org.evil.org/a.mp4"):
        with pytest.raises(VideoError, match=r"another scheme"):
            access.locate("v.parquet", name)
    assert check_allowed_url("HTTPS://Example.org/") == "https://example.org"
    for text in ("https", "https://", "file://x", "ssh://h", "https://a/b", "simplecache::https://h", "github://*"):
        with pytest.raises(UsageError, match=f"^allow_urls='{text.replace('*', '.')}': must be SCHEME://HOST"):
            check_allowed_url(text)


@pytest.mark.full
def test_replicas_fetch_what_the_run_may(server, monkeypatch):
    """The limits of the run travel to other processes with its settings."""
    from tests.runs.test_pool import CONFIG, FACTORY, GROUPS, ROOT

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    one, url = server
    with serving() as (other, elsewhere):
        rows_of("v.parquet", [f"{url}/clip.mp4", f"{elsewhere}/clip.mp4"])
        spec = CONFIG.model_copy(update={"allow_urls": (url, "http://*")})
        limits = FetchLimits(access=Access(urls=spec.allow_urls))
        jobs = [
            replace(job, number=number) for number, job in enumerate(shard_members(Job("v.parquet"), limits=limits), 1)
        ]
        found = list(ReplicaExecutor(FACTORY, spec, GROUPS)(jobs))
        errors = {outcome.path: outcome.caption.error for outcome in found}
        assert errors[f"{url}/clip.mp4"] is None and "/clip.mp4" in one.seen
        assert errors[f"{elsewhere}/clip.mp4"]["kind"] == "refused" and not other.seen


def test_rows_of_urls_are_refused_or_bounded_one_by_one(server, tmp_path):
    """Listing connects to nothing; what is fetched is refused by its address."""
    one, url = server
    with serving() as (other, elsewhere):
        rows_of("v.parquet", [f"{url}/good.mp4", f"{elsewhere}/good.mp4", f"{url}/hang.mp4"])
        limits = FetchLimits(timeout=60.0, access=Access(urls=(url, "http://*")))
        found, kinds = shard_members(Job("v.parquet"), limits=limits), []
        assert not one.seen and [job.error for job in found] == [None] * 3
        for job in found:
            files = ClipOpener(limits._replace(timeout=0.4) if "hang" in job.path else limits)
            try:
                with files.local(job) as file:
                    kinds.append(Path(file).read_bytes() == TAR)
            except VideoError as error:
                kinds.append(error.kind)
                json.dumps(error.message)
        assert kinds == [True, "refused", "timeout"] and not other.seen
