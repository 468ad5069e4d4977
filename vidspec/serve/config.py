"""Settings of the server, and the error that a client is told. No torch, no web framework."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ApiError", "ServeConfig"]


class ApiError(Exception):
    """An answer in OpenAI's error shape.

    Attributes:
        status: of HTTP.
        message: for the client; names no path and no address.
        param: the field of the request that is to blame.
        code: short machine-readable word.
    """

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param, self.status, self.code = message, param, status, code

    @property
    def content(self) -> dict[str, dict[str, str | None]]:
        """The body of the answer."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class ServeConfig:
    """Settings of the server.

    Attributes:
        name: the model's name in the API.
        batch: most clips at once; None to choose by memory and measured times.
        max_waiting: most requests that wait for the models.
        timeout: seconds a request may take, from its arrival on.
        api_key: key that all routes but ``/health`` ask for; None for no key.
        loopback: True if only this machine can connect; names of other hosts are then refused.
        media_hosts: hosts that media may come from, ``HOST`` (with a public address) or ``SCHEME://HOST``.
        media_folder: real path of the folder that ``file:`` URLs may name; None for none.
        max_bytes: bytes of a medium, and of a request's body without base64's overhead.
        max_frames: frames of a clip.
        max_pixels: pixels of a picture as it is coded.
        max_seconds: duration of a clip.
        readers: processes that read clips.
        page: True to serve the page ``/``.
    """

    name: str = "vidspec"
    batch: int | None = None
    max_waiting: int = 64
    timeout: float = 600.0
    api_key: str | None = None
    loopback: bool = True
    media_hosts: tuple[str, ...] = ()
    media_folder: str | None = None
    max_bytes: int = 64 << 20
    max_frames: int = 512
    max_pixels: int = 1 << 25
    max_seconds: float = 4 * 3600.0
    readers: int = 2
    page: bool = True

    @property
    def max_body(self) -> int:
        """Most bytes of a request: base64 takes a third more, and there are texts."""
        return self.max_bytes * 4 // 3 + (1 << 20)
