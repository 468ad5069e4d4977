"""Options of the commands, each declared once, and the dataclasses that group them. No torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property, partial, wraps
from inspect import Parameter, Signature, signature
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeAlias, TypeVar, cast, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from vidspec.cli.keys import COMMON_KEYS, KEY_SECTIONS, Completion, field_parameters, key_parameters
from vidspec.config.prompts import STYLES
from vidspec.config.run_spec import RunSpec
from vidspec.errors import UsageError
from vidspec.runs.formats.base import format_names

if TYPE_CHECKING:
    from vidspec.bench.loaded import ModelSource
    from vidspec.config.sections import ModelsSection

R = TypeVar("R")
T = TypeVar("T")

_output = partial(typer.Option, rich_help_panel="Output")
_check = partial(typer.Option, rich_help_panel="Measuring and checking")

#: Options that `vidspec caption --help` shows; `--help-all` shows all.
COMMON = {*COMMON_KEYS, "settings", "dry_run", "quiet", "verbose", "help", "help_all"}

#: The pairs that come with vidspec.
BUILT_IN = {"embedded": "LLaVA-OneVision's architecture", "embedded-qwen": "Qwen2.5-VL's architecture"}

AnswerFormat: TypeAlias = Literal["text", "json", "jsonl"]
TextOrJson: TypeAlias = Literal["text", "json"]


def profile_names(incomplete: str) -> list[tuple[str, str]]:
    """Complete names of profiles, with descriptions."""
    from vidspec.config.profiles import available

    return _matching(incomplete, ((info.name, info.about) for info in available()))


def complete_format(incomplete: str) -> list[str]:
    """Complete the last format of a comma-separated list."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + form for form in format_names() if form.startswith(last) and form not in before.split(",")]


def target_names(incomplete: str) -> list[tuple[str, str]]:
    """Complete published targets, with their default drafts."""
    from vidspec.models.known_pairs import known_pairs, listed_draft

    names = dict.fromkeys(pair.target.name for pair in known_pairs())
    return _matching(incomplete, ((name, f"draft: {listed_draft(name) or 'itself'}") for name in names))


#: Completions of values that the schemas do not list, by key or field.
COMPLETIONS: dict[str, Completion] = {
    "pair": lambda incomplete: _matching(incomplete, BUILT_IN.items()),
    "target": target_names,
    "profile": profile_names,
    "style": lambda incomplete: _matching(incomplete, STYLES.items()),
    "format": complete_format,
}


def _matching(incomplete: str, choices: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [choice for choice in choices if choice[0].startswith(incomplete)]


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


@dataclass(frozen=True)
class KeyNames:
    """The only keys of a section that are options of a command."""

    names: tuple[str, ...]


class _OptionGroup(Generic[T]):
    """The options of a dataclass or of :class:`RunSpec`.

    A dataclass has one per field, and for a field called like a section those of the section's keys, which
    ``Annotated[..., KeyNames(...)]`` restricts to some. A run has those of its fields and of the keys of a profile.

    Args:
        group: the class.
        names: the options to take, if any are named; the others keep their defaults.
        helps: help of options that mean something else in this command.
    """

    def __init__(self, group: Callable[..., T], names: Collection[str], helps: Mapping[str, str]) -> None:
        self.group, self.parameters = group, dict[str, Parameter]()
        self.keys: dict[str, str] = {}  # section of each option that is a key
        options = self._run_options() if group is RunSpec else self._field_options(group)
        self.parameters = {option.name: option for option in options if not names or option.name in names}
        for name in self.parameters.keys() & helps.keys():
            self.parameters[name].annotation.__metadata__[0].help = helps[name]

    def _run_options(self) -> Iterator[Parameter]:
        yield from field_parameters(COMPLETIONS, {"format": f"{', '.join(format_names())}. "})
        for section in KEY_SECTIONS:
            yield from self._key_options(section, None)
        yield Parameter("settings", Parameter.KEYWORD_ONLY, default=None, annotation=SetOption)

    def _field_options(self, group: Callable[..., T]) -> Iterator[Parameter]:
        types = get_type_hints(group, include_extras=True)
        for name, parameter in signature(group).parameters.items():
            if name in KEY_SECTIONS:
                yield from self._key_options(
                    name, next((one for one in get_args(types[name]) if isinstance(one, KeyNames)), None)
                )
            else:
                yield parameter.replace(annotation=types[name], kind=Parameter.KEYWORD_ONLY)

    def _key_options(self, section: str, only: KeyNames | None) -> Iterator[Parameter]:
        options = [one for one in key_parameters(section, COMPLETIONS) if only is None or one.name in only.names]
        self.keys |= {option.name: section for option in options}
        yield from options

    def take(self, given: dict[str, object]) -> T:
        """Take the values of its options out of ``given`` and return the object, made of those that are no defaults."""
        values = {name: given.pop(name) for name in self.parameters}
        values = {name: one for name, one in values.items() if one not in (self.parameters[name].default, [])}
        sections: dict[str, dict[str, object]] = {}
        for name, section in self.keys.items():
            if (value := values.pop(name, None)) is not None:
                sections.setdefault(section, {})[f"{section}.{name}"] = value
        if self.group is RunSpec:
            keys = {key: value for section in sections.values() for key, value in section.items()}
            keys |= parse_settings(cast("list[str] | None", values.pop("settings", None)), "draft.gamma=4", keys)
            return RunSpec.make(values | {"overrides": keys})  # type: ignore[return-value]
        return self.group(**values, **sections)


def flatten_options(
    *names: str, helps: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Decorator: flatten parameters of a command that are dataclasses, or a :class:`RunSpec`, into options.

    Args:
        names: the options to take, if any are named; the others keep their defaults.
        helps: help of options that mean something else in this command.
    """

    def decorated(command: Callable[..., R]) -> Callable[..., R]:
        hints, parameters = get_type_hints(command, include_extras=True), list[Parameter]()
        groups: dict[str, _OptionGroup[object]] = {}
        for name, parameter in signature(command).parameters.items():
            if hints[name] is RunSpec or (isinstance(hints[name], type) and is_dataclass(hints[name])):
                groups[name] = _OptionGroup(hints[name], names, helps)
                parameters += groups[name].parameters.values()
            else:
                parameters.append(parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY))

        @wraps(command)
        def run(**given: object) -> R:
            return command(**{name: group.take(given) for name, group in groups.items()}, **given)

        run.__dict__["__signature__"] = Signature(parameters)
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del run.__dict__["__wrapped__"]
        return run

    return decorated


#: Options of ``vidspec caption`` that all commands have which answer requests: models, frames, generation, terminal.
ASKING: tuple[str, ...] = ("profile", "settings", "pair", "target", "draft", "device", "dtype", "frames", "fps")
ASKING += ("system", "max_new_tokens", "temperature", "quiet", "debug")
#: Those that commands with a server have too.
SERVING = (*ASKING, "weights", "threads", "max_pixels", "prompt", "help_all")

#: Help of ``--profile`` in commands other than ``vidspec caption``.
PROFILE_HELP = "Method of acceleration; `vidspec profiles` lists the names, and which are not lossless."

ProfileOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--profile",
        "-p",
        envvar="VIDSPEC_PROFILE",
        metavar="NAME|FILE",
        help=PROFILE_HELP,
        autocompletion=profile_names,
    ),
]
SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override any key of the profile: --set draft.gamma=4."),
]
QuietOption: TypeAlias = Annotated[bool, _output("--quiet", help="Report failures only.")]
DebugOption: TypeAlias = Annotated[bool, _check("--debug", help="Show the traceback of every error.")]


class PlainFlags:
    """A command whose help page names no type beside flags."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for one in self.get_params(ctx):  # type: ignore[attr-defined]
            if getattr(one, "is_flag", False) and one.metavar is None:
                one.metavar = ""
        super().format_help(ctx, formatter)  # type: ignore[misc]


class Command(PlainFlags, TyperCommand):
    pass


class Group(PlainFlags, TyperGroup):
    pass


class LongHelp(Command):
    """Help page without the options in :data:`RARE`, which ``--help-all`` shows; shells complete all of them."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        rare = [one for one in self.params if one.name in RARE and not ctx.params.get("help_all")]
        try:
            for option in rare:
                option.hidden = True  # type: ignore[attr-defined]
            super().format_help(ctx, formatter)
        finally:
            for option in rare:
                option.hidden = False  # type: ignore[attr-defined]


def _help_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.params["help_all"] = True
        typer.echo(context.get_help())
        raise typer.Exit


@dataclass(frozen=True)
class TerminalOptions:
    """Options of ``vidspec caption`` that concern this terminal; those of the run are :class:`RunSpec`'s."""

    dry_run: Annotated[bool, _output("--dry-run", help="Only show the plan.")] = False
    progress: Annotated[
        TextOrJson,
        _output(
            "--progress",
            help="json: every line on standard error is a JSON object, one for each clip and at the end.",
        ),
    ] = "text"
    quiet: QuietOption = False
    verbose: Annotated[bool, _output("--verbose", "-v", help="Also report loaded models and timings.")] = False
    no_live: Annotated[bool, _output("--no-live", help="Do not show the live panel.")] = False
    debug: DebugOption = False
    help_all: Annotated[
        bool,
        typer.Option("--help-all", is_eager=True, callback=_help_all, help="Show all options and exit."),
    ] = False


@dataclass(frozen=True)
class ModelOptions:
    """Model options of commands that measure."""

    #: Those that were given, by dotted key.
    models: Annotated[Mapping[str, object], KeyNames(("pair", "target", "draft", "device", "dtype", "threads"))] = (
        field(default_factory=dict)
    )
    weights: Annotated[
        Literal["int8", "int4"] | None, typer.Option(help="Quantise the target to codes of that many bits.")
    ] = None

    @cached_property
    def _section(self) -> ModelsSection:
        """The section ``models`` of a profile.

        Raises:
            ProfileError: a value is not valid, or options exclude each other.
        """
        from vidspec.config.profiles import load

        return load("ar", {**self.models, "models.weights": self.weights}, env={}).models

    @property
    def threads(self) -> int | None:
        return self._section.threads

    @property
    def source(self) -> ModelSource:
        """Models as ``vidspec.bench`` takes them."""
        from vidspec.bench.loaded import ModelSource

        chosen = self._section
        pair = chosen.pair or "embedded"
        return ModelSource(pair, chosen.target, chosen.draft, chosen.device, chosen.dtype, chosen.weights)


#: Options that only ``--help-all`` shows: those of a run that are not common, and of the server some more.
RARE = {parameter.name for parameter in (*_OptionGroup(RunSpec, (), {}).parameters.values(),)}
RARE |= {field.name for field in fields(TerminalOptions)} | {"keep_videos", "max_duration", "max_waiting", "no_page"}
RARE -= COMMON
