"""Turns the options of ``vidspec caption`` into what the library takes: sources, a profile, a way to run, an output."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidspec.errors import UsageError

if TYPE_CHECKING:
    from vidspec.batch.formats import Format
    from vidspec.batch.inputs import Found, Sources
    from vidspec.batch.outputs import Output
    from vidspec.batch.shards import Shard
    from vidspec.batch.work import Entry, How
    from vidspec.user_config import Defaults

__all__ = ["check", "form_of", "how_of", "output_of", "overrides_of", "sources_of"]

#: Options that are keys of the profile.
KEYS = {
    "pair": "models.pair",
    "target": "models.target",
    "draft": "models.draft",
    "captioner": "models.captioner",
    "device": "models.device",
    "dtype": "models.dtype",
    "attn": "models.attention",
    "frames": "video.frames",
    "fps": "video.fps",
    "max_pixels": "video.max_pixels",
    "decoder": "video.decoder",
    "system": "generate.system",
    "max_new_tokens": "generate.max_new_tokens",
    "temperature": "generate.temperature",
    "top_p": "generate.top_p",
    "seed": "generate.seed",
}
#: Formats that go into a file for each clip unless something else is asked for.
PER_CLIP = ("txt", "srt", "vtt", "webdataset-txt")


def check(given: Any) -> None:
    """Refuse what makes no sense before anything is read.

    Raises:
        UsageError: naming the option.
    """
    start, end = given.start, given.end
    for option, value in (("--start", start), ("--end", end)):
        if value is not None and not 0 <= value < float("inf"):
            raise UsageError(f"{option} {value:g}: must be zero or more seconds")
    if start is not None and end is not None and end <= start:
        raise UsageError(f"--end {end:g}: must be after --start {start:g}")
    if given.timeout is not None and not (math.isfinite(given.timeout) and given.timeout > 0):
        raise UsageError(f"--timeout {given.timeout:g}: must be more than 0 seconds")
    if given.context and given.segment is None:
        raise UsageError("--context needs --segment", hint="--segment 30s --context")
    _alone(given, prompt="--prompt", prompt_file="--prompt-file", style="--style")
    _alone(given, output="--output", output_dir="--output-dir")
    _alone(given, output="--output", name="--name")
    _alone(given, overwrite="--overwrite", retry_failed="--retry-failed")
    _alone(given, fail_fast="--fail-fast", max_failures="--max-failures")
    if given.address is not None and given.engine.value != "ray":
        raise UsageError("--address needs --engine ray")
    elsewhere = given.replicas is not None or given.engine.value == "ray"
    for option, file in (("--trace", given.trace), ("--heatmap", given.heatmap)):
        if file is not None and elsewhere:
            raise UsageError(f"{option} needs a single captioner", hint="leave --replicas and --engine out")


def _alone(given: Any, **options: str) -> None:
    named = [option for key, option in options.items() if getattr(given, key)]
    if len(named) > 1:
        raise UsageError(f"{named[0]} and {named[1]} exclude each other")


def sources_of(given: Any) -> Sources:
    """Where the clips are.

    Raises:
        UsageError: nowhere.
    """
    from vidspec.batch.inputs import Sources

    paths, lists, manifests = (tuple(one or ()) for one in (given.paths, given.from_file, given.manifest))
    if not (paths or lists or manifests):
        raise UsageError("Missing argument 'PATH'.", hint="see `vidspec caption --help`")
    extensions = None
    if given.extensions is not None:
        words = given.extensions.replace(",", " ").split()
        extensions = frozenset(() if words == ["any"] else (word.lower().lstrip("*.") for word in words))
    return Sources(paths, lists, manifests, tuple(given.include or ()), tuple(given.exclude or ()), extensions)


def overrides_of(given: Any) -> dict[str, object]:
    """Options and ``--set`` as dotted keys; the same key by both is refused, since neither is the obvious winner."""
    from vidspec import profiles

    overrides: dict[str, object] = {
        key: getattr(given, option) for option, key in KEYS.items() if getattr(given, option) is not None
    }
    prompt = _prompt(given)
    if prompt is not None:
        overrides["generate.prompt"] = prompt
    for setting in given.settings or ():
        try:
            key, value = profiles.setting(setting)
        except ValueError:
            raise UsageError(f"--set {setting}: must be KEY=VALUE, such as prune.alpha=0.8") from None
        if key in overrides:
            raise UsageError(f"--set {setting}: {key} is set twice on this command line")
        overrides[key] = value
    return overrides


def _prompt(given: Any) -> str | None:
    if given.style is not None:
        from vidspec.prompts import style

        return style(given.style)
    if given.prompt_file is None:
        prompt: str | None = given.prompt
        return prompt
    try:
        text = Path(given.prompt_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise UsageError(f"--prompt-file {given.prompt_file}: cannot be read: {reason}") from None
    if not text:
        raise UsageError(f"--prompt-file {given.prompt_file}: is empty")
    return text


def form_of(given: Any, defaults: Defaults) -> Format:
    """The format: the option's, the config's, or text."""
    from vidspec.batch.formats import FORMATS

    name = given.form.value if given.form is not None else defaults.format or "text"
    form = next((form for form in FORMATS if form == name), None)
    if form is None:
        raise UsageError(f"{defaults.path}: format: must be one of {', '.join(FORMATS)}, not {name!r}")
    return form


def _installed(option: str, package: str, modules: Sequence[str], hint: str) -> None:
    """Refuse an option for want of an optional package, now and not when models have been loaded for it."""
    for module in modules:
        if find_spec(module) is None:
            raise UsageError(f"{option} needs {package}, and there is no module {module}", hint=hint)


def how_of(given: Any, profile: Any, total: int) -> How:
    """How every clip is done."""
    from vidspec.batch.segments import parse_segment
    from vidspec.batch.work import How

    video = {key: getattr(profile.video, key) for key in ("frames", "fps", "max_pixels", "decoder")}
    if given.segment == "scenes":
        _installed("--segment scenes", "PySceneDetect", ("scenedetect", "cv2"), "pip install 'vidspec[scenes]'")
    if video["decoder"] == "decord":
        _installed("--decoder decord", "decord", ("decord",), "pip install decord, or --decoder auto")
    if given.engine.value == "ray":
        _installed("--engine ray", "Ray", ("ray",), "pip install 'vidspec[ray]'")
    return How(
        video=video,
        prompt=profile.generate.prompt,
        segment=parse_segment(given.segment),
        context=given.context,
        baseline=given.baseline,
        verify=given.verify,
        timeout=given.timeout,
        ahead=given.decode_ahead,
        total=total,
    )


def output_of(
    given: Any, form: Format, found: Found, entries: Sequence[Entry], profile: str, shard: Shard | None
) -> Output:
    """Where records go; locks and repairs what an earlier run left, before any model is loaded.

    Raises:
        UsageError: it cannot be written, is one of the clips, or another run writes it.
    """
    from vidspec.batch.outputs import OneFile, Sidecars, Stream
    from vidspec.batch.sidecars import Names
    from vidspec.batch.writers import FileLines, StdoutLines, check_output

    fresh, several = given.overwrite, found.several
    label = shard.label if shard else ""
    clips = [entry.path for entry in entries]
    if given.output == "-" or (given.output is None and not _into_files(given, form)):
        if form in ("srt", "vtt") and several:
            raise UsageError(f"--format {form}: several clips need a file each", hint="leave --output out")
        for option in ("overwrite", "retry_failed", "checksum"):
            if getattr(given, option):
                name = option.replace("_", "-")
                raise UsageError(f"--{name} needs a file to look into", hint="-o FILE or --output-dir DIR")
        return Stream(StdoutLines(), form, several=several)
    if given.output is not None:
        path = shard.named(given.output) if shard else Path(given.output)
        check_output(path, clips, "--output")
        if path.exists() and not path.is_file():
            return Stream(FileLines(path), form, several=several)
        return OneFile(path, form, several=several, fresh=fresh)
    if given.output_dir is not None and os.path.exists(given.output_dir) and not os.path.isdir(given.output_dir):
        raise UsageError(f"--output-dir {given.output_dir}: is not a folder")
    if form in ("jsonl", "csv"):
        folder = Path(given.output_dir or ".")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--output-dir {folder}: cannot be made: {error.strerror or error}") from None
        path = folder / f"captions{label}.{form}"
        check_output(path, clips, "--output-dir")
        return OneFile(path, form, several=True, fresh=fresh)
    names = Names(form, given.output_dir, given.name, profile)
    return Sidecars(names, entries, fresh=fresh, label=label)


def _into_files(given: Any, form: str) -> bool:
    return given.output_dir is not None or given.name is not None or form in PER_CLIP


def parameters(given: Any) -> Mapping[str, Any]:
    """The options as plain values, for the log."""
    return {key: getattr(value, "value", value) for key, value in vars(given).items() if value not in (None, False)}
