"""Converts the options to the library's types: sources, profile overrides, formats and job config."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from vidspec.bounds import LONGEST_PROMPT, MANY
from vidspec.cli.keys import KEY_SECTIONS
from vidspec.cli.options import CaptionArguments
from vidspec.config.json_schema import ANY_OBJECT
from vidspec.dataset.rendering import check_template
from vidspec.errors import UsageError
from vidspec.files import read_whole

if TYPE_CHECKING:
    from vidspec.config.schema import Profile
    from vidspec.config.user_config import UserConfig
    from vidspec.dataset.allowance import FetchLimits
    from vidspec.dataset.formats.base import OutputFormat
    from vidspec.dataset.inputs import InputSources
    from vidspec.dataset.job import Job, JobConfig

__all__ = [
    "check_arguments",
    "check_fields",
    "clip_range",
    "input_sources",
    "job_config",
    "misnamed_output",
    "output_formats",
    "parse_batch",
    "parse_settings",
    "parse_size",
    "profile_overrides",
    "tolerated_failures",
]

#: Options of which only one may be given.
EXCLUSIVE = (
    ("prompt", "prompt_file", "style", "turn"),
    ("turn", "segment"),
    ("quiet", "verbose"),
    ("output", "output_dir"),
    ("output", "name"),
    ("overwrite", "retry_failed"),
    ("fail_fast", "max_failures"),
    ("fail_fast", "tolerate"),
)


def check_arguments(request: CaptionArguments) -> None:
    """Check options against each other, before anything is read.

    Raises:
        UsageError: names the option.
    """
    if request.timeout is not None and not 0 < request.timeout <= MANY:
        raise UsageError(f"--timeout {request.timeout:g}: must be more than 0 seconds, and at most {MANY}")
    if request.context and request.segment is None:
        raise UsageError("--context needs --segment", hint="--segment 30s --context")
    if request.json and (named := {"generate.json_schema", "generate.fields"} & request.generate.keys()):
        option = min(named).partition(".")[2].replace("_", "-")
        raise UsageError(f"--json and --{option} exclude each other", hint=f"--{option} alone answers with JSON too")
    for options in EXCLUSIVE:
        given = [f"--{option.replace('_', '-')}" for option in options if getattr(request, option)]
        if len(given) > 1:
            raise UsageError(f"{given[0]} and {given[1]} exclude each other")
    prompts = request.prompt or []
    if len(prompts) > 1:
        if request.segment is not None:
            raise UsageError("several --prompt and --segment exclude each other")
        if any(not prompt.strip() for prompt in prompts):
            raise UsageError("--prompt: is empty", hint="--prompt 'What moves?'")
        if len(set(prompts)) < len(prompts):
            raise UsageError("--prompt: the same prompt is given twice")
    if any(not turn.strip() for turn in request.turn or ()):
        raise UsageError("--turn: is empty", hint="--turn 'What happens then?'")
    parse_batch(request.batch)
    if request.tolerate is not None:
        tolerated_failures(request.tolerate, 0)
    if request.template is not None:
        check_template(request.template, "--template")
    texts = [request.template, *prompts, *(request.turn or ())]
    if request.existing == "skip" and request.overwrite:
        raise UsageError("--existing skip and --overwrite exclude each other")
    if request.existing != "use" and any("{existing}" in text for text in texts if text):
        raise UsageError("{existing} needs --existing use", hint="--format txt --existing use")
    if request.address is not None and request.engine != "ray":
        raise UsageError("--address needs --engine ray")
    if request.replicas is not None or request.engine == "ray":
        for option in ("trace", "heatmap", "report"):
            if getattr(request, option) is not None:
                raise UsageError(f"--{option} needs a single captioner", hint="leave out --replicas and --engine")


def check_fields(request: CaptionArguments, entries: Iterable[Job]) -> None:
    """Check the fields of ``--template`` against the columns of the clips, unless those are in unopened shards.

    Raises:
        UsageError: naming a field that no clip has.
    """
    from vidspec.dataset.inputs import is_shard

    if request.template is not None and not any(is_shard(one.path) for one in entries):
        fields = dict.fromkeys(("existing",) if request.existing == "use" else ())
        check_template(request.template, "--template", fields | {name: None for one in entries for name in one.columns})


def fetch_limits_of(request: CaptionArguments) -> FetchLimits:
    """Return the limits of fetched clips, and the paths and URLs that rows of shards may name.

    Raises:
        UsageError: names the option.
    """
    from vidspec.dataset.access import Access, check_allowed_url
    from vidspec.dataset.allowance import FetchLimits

    for folder in request.allow_paths or ():
        if not os.path.isdir(folder):
            raise UsageError(f"--allow-paths {folder}: there is no such folder")
    urls = tuple(map(check_allowed_url, request.allow_urls or ()))
    access = Access(tuple(request.allow_paths or ()), urls).with_typed(*(request.paths or ()))
    return FetchLimits(request.timeout, parse_size(request.max_fetch, "--max-fetch"), access)


def parse_size(text: str, option: str) -> int:
    """Parse a size with or without a unit, in bytes."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,3})?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    size = int(float(found[1]) * (1024 if found[3] else 1000) ** " kmgt".index(found[2] or " ")) if found else 0
    if not 0 < size < 2**63:
        raise UsageError(f"{option} {text}: must be a size, such as 500MB or 2GiB")
    return size


def clip_range(request: CaptionArguments) -> tuple[float | None, float | None]:
    """Return ``--start`` and ``--end`` in seconds.

    Raises:
        UsageError: one is not a time, or the end is not after the start.
    """
    from vidspec.dataset.manifests import parse_time

    start, end = parse_time(request.start, "--start"), parse_time(request.end, "--end")
    if end is not None and end <= (start or 0.0):
        raise UsageError(f"--end {request.end}: must be after --start {request.start or 0}")
    return start, end


def parse_batch(text: str) -> int | None:
    """Parse ``--batch``; None for ``auto``."""
    if text == "auto":
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MANY):
        raise UsageError(f"--batch {text}: must be auto or a number of clips, 1 or more")
    return int(text)


def tolerated_failures(text: str, total: int) -> int:
    """Parse ``--tolerate``; return the number of failures among ``total`` clips that it allows.

    Raises:
        UsageError: it is neither a number of clips nor a share of at most 100%.
    """
    found = re.fullmatch(r"(\d{1,9})|(\d{1,3}(?:\.\d{1,6})?)%", text.strip(), re.ASCII)
    if found is None or float(found[2] or 0) > 100:
        raise UsageError(f"--tolerate {text}: must be a number of clips or a share, such as 10 or 1%")
    return int(found[1]) if found[1] else int(total * Fraction(found[2]) / 100)


def input_sources(request: CaptionArguments) -> InputSources:
    """Return the sources of clips.

    Raises:
        UsageError: there are none.
    """
    from vidspec.dataset.inputs import InputSources

    paths, lists, manifests = (tuple(one or ()) for one in (request.paths, request.from_file, request.manifest))
    if not (paths or lists or manifests):
        raise UsageError("Missing argument 'PATH'.", hint="see `vidspec caption --help`")
    extensions = None
    if request.extensions is not None:
        words = request.extensions.replace(",", " ").split()
        extensions = frozenset(() if words == ["any"] else (word.lower().lstrip("*.") for word in words))
    globs = tuple(request.include or ()), tuple(request.exclude or ())
    return InputSources(paths, lists, manifests, *globs, extensions, request.include_images)


def profile_overrides(request: CaptionArguments) -> dict[str, object]:
    """Return options and ``--set`` as dotted keys.

    Raises:
        UsageError: a key is set twice.
    """
    overrides = {**request.models, **request.video, **request.generate}
    if request.json:
        overrides["generate.json_schema"] = ANY_OBJECT
    prompt = _prompt(request)
    if prompt is not None:
        overrides["generate.prompt"] = prompt
    return overrides | parse_settings(request.settings, "prune.alpha=0.8", overrides)


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


def _prompt(request: CaptionArguments) -> str | None:
    if request.style is not None:
        from vidspec.config.prompts import style

        return style(request.style)
    if request.prompt_file is None:
        return request.prompt[0] if request.prompt and len(request.prompt) == 1 else None
    option = f"--prompt-file {request.prompt_file}"
    try:
        text = read_whole(request.prompt_file, LONGEST_PROMPT, option).decode("utf-8").strip()
    except UnicodeDecodeError:
        raise UsageError(f"{option}: is not UTF-8 text") from None
    if not text:
        raise UsageError(f"{option}: is empty")
    return text


def output_formats(request: CaptionArguments, defaults: UserConfig) -> tuple[OutputFormat, ...]:
    """Return the formats: from the option, the output file's suffix, the config, Parquet for shards, or text.

    Raises:
        UsageError: a format is unknown, or needs a package that is not installed.
    """
    from vidspec.dataset.formats.base import DEFAULT_FORMAT, SHARD_FORMAT, format_of_suffix, make_format
    from vidspec.dataset.inputs import is_shard

    names, origin = request.form, f"--format {request.form}"
    if names is None and request.output is not None:
        names = format_of_suffix(request.output)
    if names is None:
        shards = request.output_dir is not None and request.paths and all(map(is_shard, request.paths))
        names, origin = defaults.format or (SHARD_FORMAT if shards else DEFAULT_FORMAT), f"{defaults.path}: format"
    forms = tuple(make_format(name, origin) for name in dict.fromkeys(name.strip() for name in names.split(",")))
    for form in forms:
        if form.requires is not None:
            package = form.requires
            _require_package(f"--format {form.name}", package.name, (package.module,), package.install)
    return forms


def misnamed_output(request: CaptionArguments, forms: Sequence[OutputFormat]) -> str | None:
    """Return a note if the output file's suffix is that of another format than the one that is written to it."""
    from vidspec.dataset.formats.base import format_names, make_format

    suffix = os.path.splitext(request.output or "")[1].lower()
    if not suffix or len(forms) > 1:  # of several formats each has its own suffix
        return None
    others = {make_format(name).suffix for name in format_names()} - {forms[0].suffix}
    return (
        f"note: --output {request.output}: is written as {forms[0].name}, as --format says"
        if suffix in others
        else None
    )


def _require_package(option: str, package: str, modules: Sequence[str], hint: str) -> None:
    """Refuse an option whose optional package is missing before any model is loaded."""
    for module in modules:
        if find_spec(module) is None:
            raise UsageError(f"{option} needs {package}, and module {module} is not installed", hint=hint)


def _check_av() -> None:
    """Refuse PyAV before 15: it bundles FFmpeg 7.1.0 or older, whose HEVC decoder deadlocks with several threads."""
    found = version("av")
    if int(found.partition(".")[0]) < 15:
        raise UsageError(f"PyAV {found} is too old", hint="pip install 'av>=15'")


def job_config(request: CaptionArguments, profile: Profile, total: int) -> JobConfig:
    """Return the settings of every clip.

    Raises:
        UsageError: an invalid --segment, a missing package, or --verify with a profile whose correct captions may
            differ from plain decoding's.
    """
    from vidspec.dataset.job import JobConfig, JobQuestions
    from vidspec.dataset.segments import parse_segment

    if request.verify and not profile.token_for_token:
        raise UsageError(
            f"--verify compares tokens, and those that {profile.name} samples with temperature "
            f"{profile.generate.temperature:g} are plain decoding's in distribution only",
            hint="temperature 0, or --set draft.gamma=auto, which drafts greedily",
        )
    _check_av()
    video = profile.video.arguments
    if request.segment == "scenes":
        _require_package("--segment scenes", "PySceneDetect", ("scenedetect", "cv2"), "pip install 'vidspec[scenes]'")
    if video["decoder"] == "decord":
        _require_package("--decoder decord", "decord", ("decord",), "pip install decord, or --decoder auto")
    if video["decoder"] not in ("auto", "av", "decord"):
        from vidspec.video.decode_hardware import HardwareDecoder

        HardwareDecoder(video["decoder"])  # raises if unavailable
    if request.engine == "ray":
        _require_package("--engine ray", "Ray", ("ray",), "pip install 'vidspec[ray]'")
    measured = request.baseline or (request.verify and total == 1)  # for a single clip it takes no longer
    several = request.turn or (request.prompt if request.prompt and len(request.prompt) > 1 else None)
    return JobConfig(
        video=video,
        prompt=profile.generate.prompt,
        questions=JobQuestions(tuple(several), bool(request.turn)) if several else None,
        segment=parse_segment(request.segment),
        context=request.context,
        baseline=measured,
        verify=request.verify,
        timeout=request.timeout,
        stall=profile.video.stall,
        fetch=fetch_limits_of(request),
        batch=1 if measured else parse_batch(request.batch),
        ahead=request.ahead,
        total=total,
        template=request.template,
        single_line=request.single_line,
    )


def logged_arguments(request: CaptionArguments) -> Mapping[str, object]:
    """Return the options as plain values, for the log."""
    own = {name: value for name, value in vars(request).items() if name not in KEY_SECTIONS}
    keys = {
        key.partition(".")[2]: value for key, value in {**request.models, **request.video, **request.generate}.items()
    }
    return {key: value for key, value in (own | keys).items() if value not in (None, False)}
