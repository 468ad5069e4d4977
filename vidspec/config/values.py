"""Pydantic validators of single profile values that need more than a type and bounds."""

from __future__ import annotations

import re

from pydantic_core import PydanticCustomError

from vidspec.bounds import COLDEST, HOTTEST, WIDEST
from vidspec.drafting.static_tree import parse_tree

__all__ = ["device", "gamma", "packed", "shares", "strings", "temperature", "tree", "words"]


def tree(text: str) -> str:
    if len(text.split()) > WIDEST:
        raise PydanticCustomError("tree", "{text}", {"text": f"must have at most {WIDEST} nodes"})
    try:
        parse_tree(text)
    except ValueError as error:
        raise PydanticCustomError("tree", "{text}", {"text": str(error)}) from error
    return text


def gamma(value: object) -> object:
    if value == "auto":
        return value
    if isinstance(value, str) and value.isdecimal() and len(value) <= len(str(WIDEST)):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= WIDEST:
        return value
    raise PydanticCustomError("gamma", "must be auto or a whole number from 1 to {widest}", {"widest": WIDEST})


def temperature(value: float) -> float:
    if value == 0 or COLDEST <= value <= HOTTEST:
        return value
    raise PydanticCustomError(
        "temperature", "must be 0 or from {coldest} to {hottest}", {"coldest": COLDEST, "hottest": int(HOTTEST)}
    )


def packed(value: object) -> object:
    chosen = {"auto": "auto", "true": True, "false": False}.get(str(value).lower())
    if chosen is None:
        raise PydanticCustomError("packed", "must be auto, true or false")
    return chosen


def device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|(cuda|xpu)(:\d+)?", name):
        raise PydanticCustomError("device", "must be auto, cpu, cuda, cuda:N, xpu, xpu:N or mps")
    return name


def words(value: object) -> object:
    return [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value


def strings(value: object) -> object:
    return [value] if isinstance(value, str) else value


def shares(value: object) -> object:
    if isinstance(value, str):
        return [share.strip() for share in value.strip("[] ").split(",")]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else value
