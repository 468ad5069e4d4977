"""Meaning of a spec: keys of the profile, texts of files, formats; and checks that need more than the spec."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from vidspec.bounds import LONGEST_PROMPT
from vidspec.config.json_schema import ANY_OBJECT
from vidspec.config.profiles import PREFIX, flatten_keys
from vidspec.config.prompts import EVENTS_SCHEMA, style
from vidspec.config.run_spec import RunSpec
from vidspec.errors import UsageError, option
from vidspec.files import read_text
from vidspec.runs.formats.base import (
    DEFAULT_FORMAT,
    SHARD_FORMAT,
    RequiredPackage,
    format_names,
    format_of_suffix,
    make_format,
)
from vidspec.runs.limit import text_counter
from vidspec.runs.rendering import check_names, check_template

if TYPE_CHECKING:
    from pathlib import Path

    from vidspec.config.schema import Profile
    from vidspec.config.user_config import ResolvedProfile, UserConfig
    from vidspec.runs.formats.base import OutputFormat
    from vidspec.runs.job import Job

__all__ = [
    "check_clips",
    "check_machine",
    "complete_spec",
    "output_formats",
    "plan_notes",
    "profile_keys",
    "read_texts",
]


def check_clips(spec: RunSpec, forms: Sequence[OutputFormat], jobs: Sequence[Job]) -> None:
    """Check the fields of texts against the columns of the clips, and options that exclude several prompts per clip.

    Fields of the template are not checked if clips are in shards that are not open yet.

    Raises:
        UsageError: naming a field that no clip has, or one of a prompt that is misspelt.
    """
    from vidspec.runs.job import questions_of
    from vidspec.runs.sources.base import is_shard

    names = {"existing"}.union(*(one.columns for one in jobs))
    for name, texts in (("prompt", spec.prompt), ("turn", spec.turn)):
        for text in texts:
            check_names(text, option(name), names)
    if spec.rewrite is not None:
        check_names(spec.rewrite, option("rewrite"), {*names, "caption"})
    if spec.template is not None and not any(is_shard(one.path) for one in jobs):
        fields = dict.fromkeys(("existing",) if spec.existing == "use" else ())
        check_template(spec.template, option("template"), fields | {name: None for one in jobs for name in one.fields})
    if not any(questions_of(job, spec) for job in jobs):
        return
    if spec.segment is not None:
        raise UsageError(f"{option('segment')} and several questions of a manifest exclude each other")
    if one := [form.name for form in forms if form.one_clip]:
        message = f"{option('format', one[0])}: holds one caption per clip, not several answers"
        raise UsageError(message, hint=option("format", "jsonl"))


def profile_keys(spec: RunSpec) -> dict[str, object]:
    """Return the keys of the profile that a run sets, those of its prompt and ``json`` included.

    Raises:
        UsageError: a key is set twice.
    """
    keys = dict(spec.overrides)
    derived: dict[str, object] = {}
    if spec.json_object or spec.style == "events":
        derived["generate.json_schema"] = ANY_OBJECT if spec.json_object else EVENTS_SCHEMA
    if spec.style is not None or len(spec.prompt) == 1:
        derived["generate.prompt"] = style(spec.style) if spec.style is not None else spec.prompt[0]
    for name in derived.keys() & keys.keys():
        raise UsageError(f"{option(name)}: is set twice")
    return keys | derived


def read_texts(spec: RunSpec) -> RunSpec:
    """Return a run with its prompt and rewrite as texts, of the files that it names.

    Raises:
        UsageError: a file cannot be read, or is empty.
    """
    texts: dict[str, object] = {}
    if spec.prompt_file is not None:
        text = _text_in(spec.prompt_file, option("prompt_file", spec.prompt_file))
        texts |= {"prompt": (text,), "prompt_file": None}
    if (file := spec.rewrite_path) is not None:
        text = _text_in(file, option("rewrite", f"@{file}"))
        texts["rewrite"] = f"@{text}" if text.startswith("@") else text
    return spec.model_copy(update=texts) if texts else spec


def complete_spec(spec: RunSpec, resolved: ResolvedProfile, defaults: UserConfig, clips: int) -> RunSpec:
    """Return a run with what variables and the config set: it is the same run wherever it is given again.

    A measured run captions clip by clip; a lone clip that is verified is measured, which takes no more work.
    """
    derived = profile_keys(spec).keys() - spec.overrides.keys()
    values = flatten_keys(resolved.profile.model_dump())
    config = str(defaults.path)
    own = {
        key: values[key]
        for key, source in resolved.sources.items()
        if key not in derived and (source in ("flag", config) or source.startswith(PREFIX))
    }
    if resolved.models_named:
        own |= {key: values[key] for key in ("models.pair", "models.target") if values[key] is not None}
    name = spec.profile or os.environ.get("VIDSPEC_PROFILE") or defaults.profile
    measured = spec.baseline or (spec.verify and clips == 1)
    more = {"baseline": True, "batch": 1} if measured else {}
    return spec.model_copy(update={"profile": name, "overrides": own, **more})


def _text_in(path: Path, origin: str) -> str:
    """Return the text of a file that the option in ``origin`` names.

    Raises:
        UsageError: it cannot be read, or is empty.
    """
    text = read_text(path, LONGEST_PROMPT, origin).strip()
    if not text:
        raise UsageError(f"{origin}: is empty")
    return text


def output_formats(spec: RunSpec, defaults: UserConfig) -> tuple[OutputFormat, ...]:
    """Return the formats: from the option, the output file's suffix, the config, Parquet for shards, or text.

    Raises:
        UsageError: a format is unknown or needs a package that is not installed, or an option another format.
    """
    from vidspec.runs.sources.base import is_shard

    names, origin = spec.format, option("format", spec.format)
    if names is None and spec.output is not None:
        names = format_of_suffix(spec.output)
    if names is None and spec.cut is not None:
        names = "txt"
    if names is None:
        shards = spec.output_dir is not None and spec.paths and all(map(is_shard, spec.paths))
        names, origin = defaults.format or (SHARD_FORMAT if shards else DEFAULT_FORMAT), f"{defaults.path}: format"
    forms = tuple(make_format(name, origin) for name in dict.fromkeys(name.strip() for name in names.split(",")))
    for form in forms:
        if form.requires is not None:
            _require_package(option("format", form.name), form.requires)
    return forms


def plan_notes(
    spec: RunSpec, keys: Collection[str], forms: Sequence[OutputFormat], resolved: ResolvedProfile
) -> Iterator[str]:
    """Yield what a user should know of a run before it begins: what an option does besides what its name says."""
    from vidspec.config.user_config import PAIRED

    profile = resolved.profile
    suffix = os.path.splitext(spec.output or "")[1].lower()
    if suffix and len(forms) == 1:  # of several formats each has its own suffix
        others = {make_format(name).suffix for name in format_names()} - {forms[0].suffix}
        if suffix in others:
            yield f"--output {spec.output}: is written as {forms[0].name}, as --format says"
    beside = spec.output is None and spec.output_dir is None
    if spec.segment is not None and spec.cut is None:
        if beside and any(form.name == "txt" for form in forms):
            yield (
                "--format txt with --segment writes a line with times for each segment, which trainers take for the "
                "caption of the whole clip; --cut DIR writes each segment as a clip of its own, --format "
                "webdataset-txt joins the captions, --output-dir keeps the files away from clips"
            )
        if (name := next((form.name for form in forms if form.lists_files), None)) is not None:
            yield (
                f"--format {name} with --segment lists each whole clip, with the captions of its segments joined; "
                "--cut DIR writes and lists each segment as a clip of its own"
            )
    if resolved.sources.get("models.draft") == PAIRED:
        yield f"the draft is {profile.models.draft}, listed by `vidspec models` (--draft names another)"
    wanted = [f"--{name.replace('_', '-')}" for name in ("top_k", "top_p", "min_p") if f"generate.{name}" in keys]
    if wanted and profile.generate.temperature == 0:
        yield f"{wanted[0]} changes nothing: the text is greedy (--temperature 0.8 samples it)"
    if resolved.note is not None:
        yield resolved.note


def _require_package(what: str, package: RequiredPackage) -> None:
    """Refuse an option whose optional package is missing before any model is loaded."""
    if find_spec(package.module) is None:
        message = f"{what} needs {package.name}, and module {package.module} is not installed"
        raise UsageError(message, hint=package.install)


def check_machine(spec: RunSpec, profile: Profile) -> None:
    """Check that this machine can carry out a run: packages, decoders and devices, before any model is loaded.

    Torch is imported only if the profile names a device besides the CPU.

    Raises:
        DeviceError: a device is not available.
        UsageError: a package or a decoder is missing, or --verify is given with a profile whose correct captions may
            differ from plain decoding's.
    """
    if spec.verify and not profile.token_for_token:
        raise UsageError(
            f"{option('verify')} compares tokens, and those that {profile.name} samples with temperature "
            f"{profile.generate.temperature:g} are plain decoding's in distribution only",
            hint=f"set {option('generate.temperature', 0)}, or {option('draft.gamma', 'auto')}, which drafts greedily",
        )
    if int((found := version("av")).partition(".")[0]) < 15:  # FFmpeg before 7.1.1 deadlocks on HEVC with threads
        raise UsageError(f"PyAV {found} is too old", hint="pip install 'av>=15'")
    decoder = profile.video.decoder
    if spec.segment == "scenes":
        for module in ("scenedetect", "cv2"):
            package = RequiredPackage("PySceneDetect", module, "pip install scenedetect")
            _require_package(option("segment", "scenes"), package)
    if decoder == "decord":
        package = RequiredPackage("decord", "decord", f"pip install decord, or {option('video.decoder', 'auto')}")
        _require_package(option("video.decoder", "decord"), package)
    if decoder not in ("auto", "av", "decord"):
        from vidspec.video.decode_hardware import HardwareDecoder

        HardwareDecoder(decoder)  # raises if unavailable
    if spec.engine == "ray":
        _require_package(option("engine", "ray"), RequiredPackage("Ray", "ray", "pip install ray"))
    if profile.generate.json_schema == EVENTS_SCHEMA and spec.rewrite is not None:
        hint = f"leave out {option('rewrite')} or {option('style', 'events')}"
        raise UsageError(f"{option('rewrite')} and timed events exclude each other", hint=hint)
    if spec.limit is not None:
        if profile.generate.grammar_schema is not None:
            hint = f"leave out {option('limit')}"
            raise UsageError(f"{option('limit')} and answers in JSON exclude each other", hint=hint)
        text_counter(spec.limit_tokenizer or "words")
    models, workers = profile.models, profile.workers
    devices = (models.device, models.draft_device, workers.target, workers.draft)
    if spec.engine == "local" and any(device not in (None, "auto", "cpu") for device in devices):
        from vidspec.decoding import auto

        auto.target_placement(profile)
        auto.draft_placement(profile)
