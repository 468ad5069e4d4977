"""Formats of figures for people, the same on panel, pages and pictures: counts, shares, ratios, times. Pure."""

from __future__ import annotations

from vidspec.events.tally import format_duration


def number(value: float | int | None) -> str:
    """Format as ``12,345`` or ``3.14``; a dash for None."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def counted(count: int, noun: str) -> str:
    """Format as ``1 clip`` or ``12,345 clips``."""
    return f"{number(count)} {noun}" if count == 1 else f"{number(count)} {noun}s"


def share(value: float | None) -> str:
    """Format as ``42%``, with a decimal below 10%."""
    if value is None:
        return "-"
    return f"{value:.1%}" if 0 < value < 0.0995 else f"{value:.0%}"


def ratio(value: float | None) -> str:
    """Format as ``2.05x``."""
    return "-" if value is None else f"{value:.2f}x"


def time(seconds: float | None) -> str:
    """Format as ``71 ms``, ``2.89 s`` or by :func:`~vidspec.events.tally.format_duration`."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 10 else format_duration(seconds)


def clock(seconds: float, decimals: int = 0) -> str:
    """Format as ``1:05``, or ``1:05.25`` with decimals."""
    minutes, rest = divmod(round(seconds, decimals), 60)
    return f"{int(minutes)}:{rest:0{decimals + 2 + (decimals > 0)}.{decimals}f}"


def moment(seconds: float, decimals: int) -> str:
    """Format the time of a frame: ``3.2 s``, or by :func:`clock` from a minute on."""
    return f"{seconds:.{decimals}f} s" if seconds < 59.5 else clock(seconds, decimals * (decimals > 1))


def span(start: float, end: float) -> str:
    """Format a part of a video, ``0:05 to 1:10``."""
    return f"{clock(start)} to {clock(end)}"
