"""Parses ``--set KEY=VALUE`` into keys of the profile. No torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from vidspec.errors import UsageError


def parse_settings(settings: Sequence[str] | None, example: str, overrides: Collection[str] = ()) -> dict[str, object]:
    """Parse ``--set KEY=VALUE`` into dotted keys and text; keys of ``overrides`` may not be set again.

    Raises:
        UsageError: not KEY=VALUE, or a key is set twice.
    """
    from vidspec.config.profiles import parse_setting

    parsed: dict[str, object] = {}
    for given in settings or ():
        try:
            key, value = parse_setting(given)
        except ValueError:
            raise UsageError(f"--set {given}: must be KEY=VALUE, such as {example}") from None
        if key in parsed or key in overrides:
            raise UsageError(f"--set {given}: {key} is set twice on this command line")
        parsed[key] = value
    return parsed


def parse_measured_settings(
    settings: Sequence[str] | None, example: str, overrides: Collection[str] = ()
) -> dict[str, object]:
    """Parse ``--set`` of a command that measures profiles, which share the models.

    Raises:
        UsageError: not KEY=VALUE, a key is set twice, or it is a key of the models.
    """
    from vidspec.config.labels import MODEL_OPTIONS

    parsed = parse_settings(settings, example, overrides)
    if named := next((key for key in parsed if key.startswith("models.")), None):
        raise UsageError(f"--set {named}: all profiles share the models", hint=MODEL_OPTIONS)
    return parsed
