"""Access rules: paths and URLs that shard rows may name, and addresses that may be connected to. Opens no file."""

from __future__ import annotations

import ipaddress
import os
import posixpath
import re
import socket
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from vidspec.errors import UsageError, VideoError, option

if TYPE_CHECKING:
    from aiohttp import ClientSession, TraceRequestRedirectParams

__all__ = [
    "SCHEMES",
    "Access",
    "GuardedClient",
    "InsecureRedirectError",
    "PrivateAddressError",
    "check_allowed_url",
    "is_url",
]

#: URL schemes that data may name; others run programs, read local files or log in somewhere.
SCHEMES = ("abfs", "az", "gcs", "gs", "hf", "http", "https", "memory", "s3", "s3a")
#: Scheme, host or bucket with a port, and the rest of a URL. A user name before the host does not match.
_URL = re.compile(
    r"([a-z][a-z0-9]*)://((?:[\w.-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?)((?:[/?#].*)?)", re.IGNORECASE | re.DOTALL
)
#: Default ports.
_PORTS = {"http": 80, "https": 443}


def is_url(name: str) -> bool:
    """Return True if a name is a URL."""
    return "://" in name


@dataclass(frozen=True)
class Access:
    """Access that data are granted; plain values that can be pickled.

    Attributes:
        paths: folders in which rows of local shards may name files, in addition to the shard's own.
        urls: ``SCHEME://HOST`` that rows may name; the host ``*`` is any with a public address.
        typed: origins of URLs that the user gave. Their hosts, and those in ``urls``, may have private addresses.
    """

    paths: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()

    def with_typed(self, *names: str) -> Access:
        """Return a copy with the origins of these names added, of those that are URLs."""
        origins = {_origin(name) for name in names if is_url(name)}
        return replace(self, typed=tuple(sorted(origins | {*self.typed})))

    def locate(self, shard: str, name: str) -> str:
        """Return the path or URL that a row of a shard names.

        Raises:
            VideoError: of kind ``refused``, if the row may not name it.
        """
        if "\0" in name:
            raise _refusal(shard, name, "which holds a NUL")
        if is_url(name):
            return self._resolve_url(shard, name)
        return _member_url(shard, name) if is_url(shard) else self._resolve_path(shard, name)

    def _resolve_path(self, shard: str, name: str) -> str:
        folder = os.path.dirname(shard) or "."
        path = os.path.join(folder, name)
        real = os.path.realpath(path)
        for root in (_real_path(os.path.abspath(one)) for one in (folder, *self.paths)):
            if real == root or real.startswith(root.rstrip(os.sep) + os.sep):
                return path
        hint = f"give --allow-paths {os.path.dirname(real)} if it may be read"
        raise _refusal(shard, name, "which is outside the shard's folder", hint)

    def _resolve_url(self, shard: str, name: str) -> str:
        parts = _URL.fullmatch(name)
        if parts is None or "::" in name or (scheme := parts[1].lower()) not in SCHEMES:
            raise _refusal(shard, name, "a URL that data may not name", f"download it; allowed: {', '.join(SCHEMES)}")
        host = parts[2].lower()
        if is_url(shard) and shard.split("://")[0].lower() == scheme:
            return name
        if f"{scheme}://{host}" in self.urls or f"{scheme}://*" in self.urls:
            return name
        hint = f"give --allow-urls {scheme}://{host} if it may be read"
        raise _refusal(shard, name, "a URL of another scheme than the shard's", hint)


def _member_url(shard: str, name: str) -> str:
    """Return the URL of a file in or below the folder of a shard behind a URL."""
    plain = name
    while (decoded := unquote(plain)) != plain:
        plain = decoded
    path = posixpath.normpath(name.lstrip("/") or ".")
    parts = posixpath.normpath(plain.replace("\\", "/").lstrip("/") or ".").split("/")
    if os.pardir in (path.split("/")[0], *parts) or "::" in plain:
        raise _refusal(shard, name, "which is outside the shard's folder")
    return f"{shard.rpartition('/')[0]}/{path}"


def check_allowed_url(text: str) -> str:
    """Return the ``SCHEME://HOST`` of ``--allow-urls`` in lower case.

    Raises:
        UsageError: the text is malformed, or of a scheme that data may never name.
    """
    scheme, _, host = text.lower().rstrip("/").partition("://")
    if scheme not in SCHEMES or not (host == "*" or re.fullmatch(_URL, f"{scheme}://{host}")) or "/" in host:
        raise UsageError(
            f"{option('allow_urls', text)}: must be SCHEME://HOST",
            hint=f"write it like https://example.org, with a scheme of {', '.join(SCHEMES)}",
        )
    return f"{scheme}://{host}"


def _refusal(shard: str, name: str, reason: str, hint: str | None = None) -> VideoError:
    shown = name if len(name) <= 200 else f"{name[:200]}..."
    return VideoError(f"{shard}: a row names {shown}, {reason}", kind="refused", hint=hint)


def _origin(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme.rpartition('::')[2].lower()}://{re.split('[/?#]', rest)[0].rpartition('@')[2].lower()}"


@lru_cache(maxsize=64)
def _real_path(folder: str) -> str:
    return os.path.realpath(folder)


class PrivateAddressError(OSError):
    """A refused connection. If a host name has several addresses, aiohttp keeps the first of equal errors."""

    def __init__(self, address: str) -> None:
        super().__init__("the address is not public")
        self.address = address


class InsecureRedirectError(OSError):
    """A refused redirect from https to http, which others on the way could read and change."""

    def __init__(self, host: str) -> None:
        super().__init__("a redirect leads from https to http")
        self.host = host


@dataclass(frozen=True)
class GuardedClient:
    """Factory of HTTP sessions that connect only to public addresses and to hosts the user named.

    Every connection is checked by its address, also after a redirect. A redirect from https to http is refused, unless
    the user named its host with http.

    Attributes:
        named: ``SCHEME://HOST`` of hosts that may have any address.
    """

    named: tuple[str, ...] = ()

    async def __call__(self, **options: Any) -> ClientSession:
        """Return a new session; fsspec calls this once per file system."""
        import aiohttp

        try:
            connector = aiohttp.TCPConnector(socket_factory=self._make_socket)
        except TypeError:  # before 3.12
            raise UsageError("URLs need aiohttp 3.12 or later", hint="pip install --upgrade aiohttp") from None
        bounds = aiohttp.ClientTimeout(total=None)  # fetching is bounded per clip
        trace = aiohttp.TraceConfig()
        trace.on_request_redirect.append(self._check_redirect)
        own = {"connector": connector, "timeout": bounds, "trace_configs": [trace]}
        return aiohttp.ClientSession(**{**own, **options})

    async def _check_redirect(
        self, session: ClientSession, context: object, redirect: TraceRequestRedirectParams
    ) -> None:
        from yarl import URL

        headers = redirect.response.headers
        target = redirect.response.url.join(URL(headers.get("Location") or headers.get("URI") or ""))
        if redirect.response.url.scheme == "https" and target.scheme == "http":
            host = target.authority.rpartition("@")[2].lower()
            if not {f"http://{host}", "http://*"} & {*self.named}:
                raise InsecureRedirectError(host)

    def _make_socket(self, address: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, (host, port, *_) = address
        self.check(host, port)
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made

    def check(self, host: str, port: int) -> None:
        """Reject an address that is neither public nor that of a named host.

        Raises:
            PrivateAddressError: the address is not allowed.
        """
        address = _address(host)
        if address.is_global and not address.is_multicast:
            return
        for url in self.named:
            parts = urlsplit(url)
            if parts.hostname is None or parts.hostname == "*" or port != (parts.port or _PORTS.get(parts.scheme)):
                continue
            try:
                addresses = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
            except OSError:
                continue
            if any(_address(str(one[4][0])) == address for one in addresses):
                return
        raise PrivateAddressError(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
