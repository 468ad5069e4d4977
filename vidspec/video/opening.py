"""Opens a video file with PyAV, or raises one error with the reason. Reads no packet of the video."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import av
from av.stream import Disposition

from vidspec.channel import has_no_descriptor
from vidspec.errors import DescriptorError, VideoError, VidspecError, reason_of
from vidspec.files import LFS_HINT, is_lfs_pointer
from vidspec.video.progress import advance

if TYPE_CHECKING:
    from av.codec.hwaccel import HWAccel
    from av.stream import Stream

#: FFmpeg's names of the containers that are opened. None of them refers to another file; of the others, playlists
#: (hls, concat, dash, imf, image2) and indexes (vobsub) do, and some (mlv) look for further parts. The last ones hold
#: sound only, so that the error can name it.
FORMATS = (
    "mov,matroska,webm,avi,asf,asf_o,flv,live_flv,kux,mpegts,mpeg,mpegvideo,mxf,gxf,nut,nuv,ogg,rm,ivr,ivf,dv,wtv,pva,"
    "obu,av1,h261,h263,h264,hevc,vvc,m4v,vc1,vc1test,cavsvideo,avs2,avs3,dirac,mjpeg,mjpeg_2000,yuv4mpegpipe,"
    "gif,apng,webp_anim,png_pipe,jpeg_pipe,webp_pipe,bmp_pipe,tiff_pipe,mp3,wav,flac,aac"
)

# An MP4 begins with one of these boxes; without "moov" FFmpeg cannot tell it from any other data.
_MP4_BOXES = {b"ftyp", b"mdat", b"moov", b"free", b"skip", b"wide"}
# First bytes of lists of other files.
_LISTS = (b"#EXTM3U", b"ffconcat", b"# VobSub", b"[playlist]")
_OTHER_HEADS = (b"\x1aE\xdf\xa3", b"RIFF", b"FLV\x01", b"GIF8", b"\x89PNG", b"\xff\xd8\xff", b"OggS")


def checked_path(path: str | os.PathLike[str]) -> str:
    """Return the path of a non-empty regular file, as given, so that errors name it.

    Devices, pipes and sockets are never opened, so that nothing can hang.

    Raises:
        VideoError: kind missing, folder, unreadable, unsupported or empty.
    """
    name = os.fspath(path)
    if isinstance(name, bytes):
        name = os.fsdecode(name)
    try:
        info = os.stat(name)
    except FileNotFoundError:
        hint = "vidspec reads files; download it first" if "://" in name else None
        raise VideoError(f"{name}: no such file", kind="missing", hint=hint) from None
    except (OSError, ValueError) as error:
        raise VideoError(f"{name}: cannot be read: {reason_of(error)}", kind="unreadable") from None
    if stat.S_ISDIR(info.st_mode):
        raise VideoError(f"{name}: is a folder, not a video", kind="folder")
    if not stat.S_ISREG(info.st_mode):
        raise VideoError(
            f"{name}: is a device or a pipe, not a file", kind="unsupported", hint="save it to a file first"
        )
    if info.st_size == 0:
        raise VideoError(f"{name}: is empty (0 bytes)", kind="empty")
    try:
        pointer = is_lfs_pointer(name)
    except OSError as error:
        if has_no_descriptor(error):
            raise DescriptorError.of_clip(name) from None
        raise VideoError(f"{name}: cannot be read: {reason_of(error)}", kind="unreadable") from None
    if pointer:
        raise VideoError(f"{name}: is a pointer of Git LFS, not the video itself", kind="not_video", hint=LFS_HINT)
    return name


def accelerator(device: str) -> HWAccel:
    """Return FFmpeg's hardware decoder of that name, without software fallback.

    ``cuda:1`` is that of the second GPU.
    """
    from av.codec.hwaccel import HWAccel

    kind, _, number = device.partition(":")
    return HWAccel(kind, device=number or None, allow_software_fallback=False)


def accelerated(codec: av.CodecContext) -> bool:
    return codec.is_hwaccel


def codec_name(codec: av.CodecContext) -> str:
    """Return FFmpeg's name of the codec, independent of the decoder."""
    return str(getattr(codec.codec, "canonical_name", codec.name))


@contextmanager
def opened(path: str, hardware: str | None = None) -> Iterator[av.container.InputContainer]:
    """Open the container of ``path`` and close it on leaving. ``hardware``: FFmpeg's name of a hardware decoder.

    Raises:
        VideoError: kind unreadable, not_video, truncated, unsupported or decoder. Errors of the body pass through.
    """
    try:
        container = _container(path, hardware)
    except PermissionError as error:
        raise VideoError(f"{path}: cannot be read: {reason_of(error)}", kind="unreadable") from None
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise _open_error(path, error) from None
    try:
        yield container
    finally:
        container.close()


def _open(file: str, **options: Any) -> av.container.InputContainer:
    if int(av.__version__.partition(".")[0]) < 19:  # later ones read tags that are not UTF-8 anyway
        options["metadata_errors"] = "replace"
    found: av.container.InputContainer = av.open(file, mode="r", **options)
    return found


def _container(path: str, hardware: str | None) -> av.container.InputContainer:
    options = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}
    file = os.path.abspath(path)  # cannot be mistaken for a protocol ("concat:", "http:")
    if hardware is None:
        return _open(file, options=options)
    try:
        return _open(file, options=options, hwaccel=accelerator(hardware))
    except (av.error.FFmpegError, OSError, RuntimeError) as error:  # RuntimeError: no stream is for the hardware
        raise VideoError(
            f"{path}: the hardware does not decode it: {reason_of(error)}", kind="decoder", hint="use --decoder av"
        ) from None


def video_streams(container: av.container.InputContainer) -> list[av.VideoStream]:
    """Return the video streams without cover pictures, in the order of the ffmpeg command; may be empty.

    Streams marked as default come first, the largest before the others.
    """
    streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]

    def rank(stream: av.VideoStream) -> tuple[bool, int, int]:
        codec = stream.codec_context
        pixels = 0 if codec is None else codec.width * codec.height
        return not stream.disposition & Disposition.default, -pixels, stream.index

    return sorted(streams, key=rank)


def packets_of(container: av.container.InputContainer, stream: Stream) -> Iterator[av.Packet[Stream]]:
    """Yield the packets of ``stream`` from the current position, then an empty one that flushes the decoder.

    Raises:
        av.error.FFmpegError, OSError: reading fails.
    """
    try:
        for packet in container.demux(stream):
            advance()
            yield packet
    except IndexError:  # PyAV, on damaged files: FFmpeg counts a stream that PyAV does not have
        raise OSError("its streams are damaged") from None


def _open_error(path: str, error: Exception) -> VidspecError:
    if has_no_descriptor(error):
        return DescriptorError.of_clip(path)
    try:
        with open(path, "rb") as file:
            head = file.read(12)
    except OSError as failure:
        if has_no_descriptor(failure):
            return DescriptorError.of_clip(path)
        return VideoError(f"{path}: cannot be read: {reason_of(failure)}", kind="unreadable")
    if head[4:8] in _MP4_BOXES:
        return VideoError(
            f"{path}: is incomplete or damaged: it has no readable index (moov)",
            kind="truncated",
            hint="copy or download it again",
        )
    if head.startswith(_OTHER_HEADS):
        return VideoError(f"{path}: is incomplete or damaged: {reason_of(error)}", kind="truncated")
    if head.lstrip(b"\xef\xbb\xbf").startswith(_LISTS):
        return VideoError(
            f"{path}: is a list of other files, not a video", kind="unsupported", hint="name the video files"
        )
    if isinstance(error, av.error.ArgumentError):  # another format than those of FORMATS
        return VideoError(f"{path}: is a kind of video that vidspec does not read", kind="not_video")
    if isinstance(error, ValueError | av.error.EOFError):  # "invalid data", "invalid argument", nothing found
        return VideoError(f"{path}: is not a video", kind="not_video")
    return VideoError(f"{path}: cannot be opened as a video: {reason_of(error)}", kind="unreadable")
