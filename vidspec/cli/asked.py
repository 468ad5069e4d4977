"""Turns the options of ``vidspec caption`` into what the library takes: sources, a profile, a way to run, an output."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidspec.errors import UsageError
from vidspec.profile.bounds import MANY

if TYPE_CHECKING:
    from vidspec.batch.formats import Format
    from vidspec.batch.inputs import Found, Sources
    from vidspec.batch.outputs import Output
    from vidspec.batch.shards import Shard
    from vidspec.batch.sidecars import Names
    from vidspec.batch.work import Entry, How
    from vidspec.profile.user_config import Defaults

__all__ = [
    "Place",
    "batch_of",
    "check",
    "forms_of",
    "how_of",
    "output_of",
    "overrides_of",
    "part_of",
    "places_of",
    "sources_of",
]

#: Options that are keys of the profile.
KEYS = {
    "pair": "models.pair",
    "target": "models.target",
    "draft": "models.draft",
    "captioner": "models.captioner",
    "device": "models.device",
    "dtype": "models.dtype",
    "frames": "video.frames",
    "fps": "video.fps",
    "max_pixels": "video.max_pixels",
    "decoder": "video.decoder",
    "allow_damaged": "video.allow_damaged",
    "system": "generate.system",
    "max_new_tokens": "generate.max_new_tokens",
    "stop_loops": "generate.stop_loops",
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
    if given.timeout is not None and not 0 < given.timeout <= MANY:
        raise UsageError(f"--timeout {given.timeout:g}: must be more than 0 seconds, and at most {MANY}")
    if given.context and given.segment is None:
        raise UsageError("--context needs --segment", hint="--segment 30s --context")
    _alone(given, prompt="--prompt", prompt_file="--prompt-file", style="--style")
    batch_of(given.batch)
    _alone(given, quiet="--quiet", verbose="--verbose")
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


def part_of(given: Any) -> tuple[float | None, float | None]:
    """``--start`` and ``--end`` in seconds.

    Raises:
        UsageError: one of them is no time, or they are the wrong way round.
    """
    from vidspec.batch.manifests import moment

    start, end = moment(given.start, "--start"), moment(given.end, "--end")
    if end is not None and end <= (start or 0.0):
        raise UsageError(f"--end {given.end}: must be after --start {given.start or 0}")
    return start, end


def _alone(given: Any, **options: str) -> None:
    named = [option for key, option in options.items() if getattr(given, key)]
    if len(named) > 1:
        raise UsageError(f"{named[0]} and {named[1]} exclude each other")


def batch_of(said: str) -> int | None:
    """``--batch`` as a number, None for ``auto``."""
    if said == "auto":
        return None
    if not (said.isascii() and said.isdigit() and 1 <= int(said) <= MANY):
        raise UsageError(f"--batch {said}: must be auto or a number of clips, 1 or more")
    return int(said)


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
    from vidspec.profile import profiles

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
        from vidspec.profile.prompts import style

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


def forms_of(given: Any, defaults: Defaults) -> tuple[Format, ...]:
    """The formats: the option's, the config's, or text."""
    from vidspec.batch.formats import FORMATS

    said = given.form if given.form is not None else defaults.format or "text"
    where = f"--format {said}" if given.form is not None else f"{defaults.path}: format"
    forms = []
    for name in dict.fromkeys(word.strip() for word in said.split(",")):
        form = next((form for form in FORMATS if form == name), None)
        if form is None:
            raise UsageError(f"{where}: must be one of {', '.join(FORMATS)}, not {name!r}")
        forms.append(form)
    return tuple(forms)


def _installed(option: str, package: str, modules: Sequence[str], hint: str) -> None:
    """Refuse an option for want of an optional package, now and not when models have been loaded for it."""
    for module in modules:
        if find_spec(module) is None:
            raise UsageError(f"{option} needs {package}, and there is no module {module}", hint=hint)


def how_of(given: Any, profile: Any, total: int) -> How:
    """How every clip is done.

    Raises:
        UsageError: a wrong --segment, a package that is missing, or --verify where correct captions differ from plain
            decoding's.
    """
    from vidspec.batch.segments import parse_segment
    from vidspec.batch.work import How

    if given.verify and not profile.token_for_token:
        raise UsageError(
            f"--verify compares tokens, and those that {profile.name} draws with temperature "
            f"{profile.generate.temperature:g} are plain decoding's in distribution only",
            hint="temperature 0, or --set draft.gamma=auto, which drafts greedily",
        )
    keys = ("frames", "fps", "max_pixels", "decoder", "allow_damaged")
    video = {key: getattr(profile.video, key) for key in keys}
    if given.segment == "scenes":
        _installed("--segment scenes", "PySceneDetect", ("scenedetect", "cv2"), "pip install 'vidspec[scenes]'")
    if video["decoder"] == "decord":
        _installed("--decoder decord", "decord", ("decord",), "pip install decord, or --decoder auto")
    if video["decoder"] == "nvdec":
        from vidspec.video.decode_nvdec import NvdecDecoder

        NvdecDecoder()  # says so where there is none
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
        batch=1 if given.baseline else batch_of(given.batch),
        ahead=given.ahead,
        total=total,
    )


@dataclass(frozen=True)
class Place:
    """Where the records of one or more formats go: standard output without a path, a file, or a file for each clip."""

    forms: tuple[Format, ...]
    path: Path | None = None
    names: tuple[Names, ...] = ()
    several: bool = False

    def journal(self, entry: Entry, label: str) -> Path | None:
        """The file that remembers what was done of an entry, if one does."""
        from vidspec.batch.outputs import journal_beside, journal_of

        if self.names:
            return journal_beside(self.names[0], entry, label)
        return journal_of(self.path, self.forms[0]) if self.path is not None else None


def places_of(
    given: Any, forms: Sequence[Format], found: Found, entries: Sequence[Entry], profile: str, shard: Shard | None
) -> list[Place]:
    """Where records go; makes and changes nothing.

    Raises:
        UsageError: it cannot be written, is one of the clips, or two formats would share it.
    """
    from vidspec.batch.formats import SUFFIXES
    from vidspec.batch.sidecars import Names, check_names
    from vidspec.batch.writers import check_output

    label = shard.label if shard else ""
    clips = [entry.path for entry in entries]
    places: list[Place] = []
    each: list[Names] = []
    for form in forms:
        if given.output == "-" or (given.output is None and not _into_files(given, form)):
            if any(place.path is None for place in places):
                raise UsageError(
                    f"--format {','.join(forms)}: standard output takes one format", hint="-o FILE or --output-dir DIR"
                )
            places.append(Place((form,), several=found.several))
        elif given.output is not None:
            path = shard.named(given.output) if shard else Path(given.output)
            if len(forms) > 1:
                path = path.with_suffix(SUFFIXES[form])
            if any(place.path == path for place in places):
                raise UsageError(f"--format {','.join(forms)}: two would share the file {path}")
            check_output(path, clips, "--output")
            places.append(Place((form,), path, several=found.several))
        elif form in ("jsonl", "csv"):
            places.append(Place((form,), Path(given.output_dir or ".") / f"captions{label}.{form}", several=True))
        else:
            each.append(Names(form, given.output_dir, given.name, profile))
    for place in places:
        form, file = place.forms[0], place.path
        one = file is None or not file.exists() or file.is_file()
        if one and place.several and form in (("srt", "vtt") if file is None else ("srt", "vtt", "webdataset-txt")):
            raise UsageError(f"--format {form}: several clips need a file each", hint="leave --output out")
    if each:
        check_names(each, entries)
        places.append(Place(tuple(one.form for one in each), names=tuple(each)))
    for option in ("overwrite", "retry_failed", "checksum"):
        if getattr(given, option) and not any(place.path or place.names for place in places):
            name = option.replace("_", "-")
            raise UsageError(f"--{name} needs a file to look into", hint="-o FILE or --output-dir DIR")
    if given.output_dir is not None and os.path.exists(given.output_dir) and not os.path.isdir(given.output_dir):
        raise UsageError(f"--output-dir {given.output_dir}: is not a folder")
    return places


def output_of(given: Any, places: Sequence[Place], entries: Sequence[Entry], shard: Shard | None) -> Output:
    """Opens the places; locks and repairs what an earlier run left, before any model is loaded.

    Raises:
        UsageError: one cannot be written, or another run writes it.
    """
    from vidspec.batch.outputs import OneFile, Sidecars, Stream
    from vidspec.batch.several import Several
    from vidspec.batch.writers import FileLines, StdoutLines, check_output

    order = entries if given.ordered else None

    def opened(place: Place) -> Output:
        path, form = place.path, place.forms[0]
        if place.names:
            return Sidecars(place.names, entries, fresh=given.overwrite, label=shard.label if shard else "")
        if path is None:
            return Stream(StdoutLines(), form, several=place.several, raw_csv=given.csv_raw, order=order)
        if given.output is None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"--output-dir {path.parent}: cannot be made: {error.strerror or error}") from None
            check_output(path, [entry.path for entry in entries], "--output-dir")
        if path.exists() and not path.is_file():
            return Stream(FileLines(path), form, several=place.several, raw_csv=given.csv_raw, order=order)
        return OneFile(path, form, several=place.several, fresh=given.overwrite, raw_csv=given.csv_raw)

    with ExitStack() as undo:
        outputs: list[Output] = []
        for place in places:
            outputs.append(opened(place))
            undo.callback(outputs[-1].close, (), complete=False)
        undo.pop_all()
    return outputs[0] if len(outputs) == 1 else Several(outputs)


def _into_files(given: Any, form: str) -> bool:
    return given.output_dir is not None or given.name is not None or form in PER_CLIP


def parameters(given: Any) -> Mapping[str, Any]:
    """The options as plain values, for the log."""
    return {key: getattr(value, "value", value) for key, value in vars(given).items() if value not in (None, False)}
