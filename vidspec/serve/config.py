"""Settings of the server, and the error that a client is told. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

#: Seconds after which a client may ask a busy server again.
RETRY_AFTER = 5


class ApiError(HTTPException):
    """An answer in OpenAI's error shape.

    Args:
        message: for the client; names no path and no address.
        param: the field of the request that is to blame.
        status: of HTTP.
        code: short machine-readable word.
        headers: further headers of the answer.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        status: int = 400,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        own = {"Retry-After": str(RETRY_AFTER)} if status == 503 else {}
        super().__init__(status, message, {**own, **(headers or {})})
        kind = "server_error" if status >= 500 else "invalid_request_error"
        self.code = code
        self.content = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    @property
    def response(self) -> Response:
        return JSONResponse(self.content, self.status_code, self.headers)


@dataclass(frozen=True)
class ServeConfig:
    """Settings of the server.

    Attributes:
        name: the model's name in the API.
        batch: maximum number of clips at once; None to choose by memory and measured times.
        max_waiting: maximum number of requests that wait for the models.
        timeout: seconds a request may take, from its arrival on.
        patience: seconds that a client may take for the headers of a request, for each next part of its body, and to
            read what it was sent.
        api_key: key required by all routes but ``/health``; None for no key.
        loopback: True if only this machine can connect; names of other hosts are then refused.
        media_hosts: hosts that media may come from, ``HOST`` (with a public address) or ``SCHEME://HOST``.
        media_folder: real path of the folder that ``file:`` URLs may name; None for none.
        max_bytes: limit of a medium, and of a request's body without base64's overhead.
        max_frames: limit of a clip.
        max_pixels: limit of a picture as it is coded.
        max_seconds: limit of a clip's duration.
        keep_bytes: memory for recent videos, their features and KV entries, for further questions; 0 for none.
        readers: number of processes that read clips.
        page: True to serve the page ``/``.
    """

    name: str = "vidspec"
    batch: int | None = None
    max_waiting: int = 64
    timeout: float = 600.0
    patience: float = 30.0
    api_key: str | None = None
    loopback: bool = True
    media_hosts: tuple[str, ...] = ()
    media_folder: str | None = None
    max_bytes: int = 64 << 20
    max_frames: int = 512
    max_pixels: int = 1 << 25
    max_seconds: float = 4 * 3600.0
    keep_bytes: int = 1 << 30
    readers: int = 2
    page: bool = True

    @property
    def max_body(self) -> int:
        """Maximum bytes of a request: base64 takes a third more, and there are texts."""
        return self.max_bytes * 4 // 3 + (1 << 20)
