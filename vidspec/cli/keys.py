"""Options of commands, made from the schemas: keys of profiles (``--frames``) and fields of a run (``--output``).

No torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import typer
from annotated_types import Ge
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from vidspec.config.run_spec import RunSpec, Text, flag_of
from vidspec.config.sections import Flag, GenerateSection, ModelsSection, Section, VideoSection
from vidspec.errors import ProfileError, Spelling, VidspecError, value_text

#: Returns the values that may complete a word, each with a description or not.
Completion: TypeAlias = Callable[[str], list[Any]]

#: Sections whose keys are options, each with its panel of the help.
KEY_SECTIONS: dict[str, tuple[type[Section], str]] = {
    "models": (ModelsSection, "Models"),
    "video": (VideoSection, "Video"),
    "generate": (GenerateSection, "Generation"),
}


def key_parameters(section: str, completions: Mapping[str, Completion]) -> Iterator[Parameter]:
    """Yield the options of a section's keys, as parameters of a command; the value of one not given is None.

    Args:
        section: one of :data:`KEY_SECTIONS`.
        completions: of values that the schema does not list, by key.
    """
    for name, field, flag in _flagged(KEY_SECTIONS[section][0]):
        option = typer.Option(
            "/".join(_spellings(name, field)),
            help=_help(field),
            metavar=flag.metavar,
            rich_help_panel=KEY_SECTIONS[section][1],
            autocompletion=completions.get(name, _completion(choices(field))),
        )
        # The schema checks the value; here only numbers are told from text.
        kinds = _value_types(field)
        kind: Any = list[str] if get_origin(kinds[0]) is tuple else kinds[0] if kinds[0] in (bool, int, float) else str
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option])


def field_parameters(completions: Mapping[str, Completion], more: Mapping[str, str]) -> Iterator[Parameter]:
    """Yield the options of the fields of a run, as parameters of a command.

    Args:
        completions: of values that the schema does not list, by field.
        more: words before a field's help that the schema cannot know, such as the formats that are installed.
    """
    for name, field, flag in _flagged(RunSpec):
        help = more.get(name, "") + f"{field.description}."
        is_text = Text in _value_types(field) or any(isinstance(one, BeforeValidator) for one in field.metadata)
        annotation = str | None if is_text else field.annotation  # the schema parses it
        default = None if is_text else field.default
        if name == "paths":
            parameter = typer.Argument(metavar=flag.metavar, help=help, show_default=False)
        else:
            low = next((bound.ge for bound in field.metadata if isinstance(bound, Ge)), None)
            parameter = typer.Option(
                *(flag.names or (f"--{name.replace('_', '-')}",)),
                help=help,
                metavar=flag.metavar,
                rich_help_panel=flag.panel,
                envvar=flag.variable,
                min=low,  # type: ignore[arg-type]
                autocompletion=completions.get(name),
            )
        if field.default == ():
            annotation = list[str] | None
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, parameter])


def choices(field: FieldInfo) -> tuple[str, ...]:
    """Return the values of a key that takes no others; empty if it does."""
    kinds = _value_types(field)
    return get_args(kinds[0]) if len(kinds) == 1 and get_origin(kinds[0]) is Literal else ()


def _help(field: FieldInfo) -> str:
    values = choices(field)
    return f"{field.description}: {', '.join(values[:-1])} or {values[-1]}." if values else f"{field.description}."


def _value_types(field: FieldInfo) -> list[Any]:
    """Return the types that a key's value may have, besides null."""
    union = get_origin(field.annotation) in (Union, UnionType)
    return [kind for kind in get_args(field.annotation) if kind is not type(None)] if union else [field.annotation]


def _flagged(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo, Flag]]:
    for name, field in model.model_fields.items():
        for flag in field.metadata:
            if isinstance(flag, Flag):
                yield name, field, flag


def _spellings(name: str, field: FieldInfo) -> list[str]:
    """Return the option's name, and one to turn it off if it is on by default."""
    word = name.replace("_", "-")
    return [f"--{word}", f"--no-{word}"] if field.default is True else [f"--{word}"]


def _completion(values: tuple[str, ...]) -> Completion:
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


#: Key of each option.
FLAGS: dict[str, str] = {
    spelling: f"{section}.{name}"
    for section in KEY_SECTIONS
    for name, field, _ in _flagged(KEY_SECTIONS[section][0])
    for spelling in _spellings(name, field)
}
_MODELS: tuple[type[BaseModel], ...] = (RunSpec, *(section for section, _ in KEY_SECTIONS.values()))
#: Keys and fields that ``vidspec caption --help`` shows.
COMMON_KEYS = {name for model in _MODELS for name, _, flag in _flagged(model) if flag.common}
#: Key of each flag that sets one: those above, ``vidspec caption``'s ways to name a prompt, and ``--json``.
_KEY_OF_FLAG = {
    **FLAGS,
    **{f"--{name}": f"models.{name}" for name in ("pair", "weights")},
    **dict.fromkeys(("--prompt", "--prompt-file", "--style"), "generate.prompt"),
    "--json": "generate.json_schema",
}


def spell_flags(error: VidspecError, args: Sequence[str]) -> Spelling:
    """Return how an error of a command line names options: by the flag, variable or key of a file that set them.

    A key that ``--set`` sets, or for which there is no flag, is named by itself, with a value as ``--set`` takes it.
    """
    typed = [arg.partition("=")[0] for arg in args]
    settings = {arg.removeprefix("--set=").partition("=")[0] for arg in args}
    sources = error.sources if isinstance(error, ProfileError) else {}

    def spell(name: str, value: object) -> str:
        if name in sources:
            return error.spell(name, value)
        if name in RunSpec.model_fields:
            flag = "PATH" if name == "paths" else flag_of(name)
            return flag if value is None or value is True else f"{flag} {_typed(value)}"
        flags = [flag for flag, key in _KEY_OF_FLAG.items() if key == name and name not in settings]
        flag = next((flag for flag in flags if flag in typed), flags[0] if flags else "")
        if value is None:
            return flag or name
        return f"{flag} {_typed(value)}" if flag else f"--set {name}={_typed(value)}"

    return spell


def _typed(value: object) -> str:
    """Return a value as it is typed in a shell; braces that a shell leaves alone are not quoted."""
    text = value_text(value)
    return shlex.quote(text) if set(text) & set(" \t\n\"'") else text
