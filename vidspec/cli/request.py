"""Makes of a request what the library takes: sources, keys of a profile, formats, a way to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vidspec.cli.options import EngineName, Request
from vidspec.config.bounds import LONGEST_PROMPT, MANY
from vidspec.errors import UsageError
from vidspec.files import read_whole

if TYPE_CHECKING:
    from vidspec.config.schema import Profile
    from vidspec.config.user_config import Defaults
    from vidspec.dataset.formats import Format
    from vidspec.dataset.inputs import Sources
    from vidspec.dataset.job import JobConfig

__all__ = ["batch_of", "check", "forms_of", "how_of", "overrides_of", "part_of", "sources_of"]

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
    "seek": "video.seek",
    "allow_damaged": "video.allow_damaged",
    "audio": "video.audio",
    "system": "generate.system",
    "max_new_tokens": "generate.max_new_tokens",
    "stop_loops": "generate.stop_loops",
    "temperature": "generate.temperature",
    "top_p": "generate.top_p",
    "seed": "generate.seed",
}


def check(request: Request) -> None:
    """Refuse what makes no sense before anything is read.

    Raises:
        UsageError: naming the option.
    """
    if request.timeout is not None and not 0 < request.timeout <= MANY:
        raise UsageError(f"--timeout {request.timeout:g}: must be more than 0 seconds, and at most {MANY}")
    if request.context and request.segment is None:
        raise UsageError("--context needs --segment", hint="--segment 30s --context")
    _alone(request, prompt="--prompt", prompt_file="--prompt-file", style="--style", turn="--turn")
    _alone(request, turn="--turn", segment="--segment")
    prompts = request.prompt or []
    if len(prompts) > 1:
        if request.segment is not None:
            raise UsageError("several --prompt and --segment exclude each other")
        if any(not prompt.strip() for prompt in prompts):
            raise UsageError("--prompt: is empty", hint="--prompt 'What moves?'")
        if len(set(prompts)) < len(prompts):
            raise UsageError("--prompt: the same is asked twice")
    if any(not turn.strip() for turn in request.turn or ()):
        raise UsageError("--turn: is empty", hint="--turn 'What happens then?'")
    batch_of(request.batch)
    _alone(request, quiet="--quiet", verbose="--verbose")
    _alone(request, output="--output", output_dir="--output-dir")
    _alone(request, output="--output", name="--name")
    _alone(request, overwrite="--overwrite", retry_failed="--retry-failed")
    _alone(request, fail_fast="--fail-fast", max_failures="--max-failures")
    if request.address is not None and request.engine is not EngineName.ray:
        raise UsageError("--address needs --engine ray")
    elsewhere = request.replicas is not None or request.engine is EngineName.ray
    for option, file in (("--trace", request.trace), ("--heatmap", request.heatmap), ("--report", request.report)):
        if file is not None and elsewhere:
            raise UsageError(f"{option} needs a single captioner", hint="leave --replicas and --engine out")


def part_of(request: Request) -> tuple[float | None, float | None]:
    """``--start`` and ``--end`` in seconds.

    Raises:
        UsageError: one of them is no time, or they are the wrong way round.
    """
    from vidspec.dataset.manifests import moment

    start, end = moment(request.start, "--start"), moment(request.end, "--end")
    if end is not None and end <= (start or 0.0):
        raise UsageError(f"--end {request.end}: must be after --start {request.start or 0}")
    return start, end


def _alone(request: Request, **options: str) -> None:
    named = [option for key, option in options.items() if getattr(request, key)]
    if len(named) > 1:
        raise UsageError(f"{named[0]} and {named[1]} exclude each other")


def batch_of(said: str) -> int | None:
    """``--batch`` as a number, None for ``auto``."""
    if said == "auto":
        return None
    if not (said.isascii() and said.isdigit() and 1 <= int(said) <= MANY):
        raise UsageError(f"--batch {said}: must be auto or a number of clips, 1 or more")
    return int(said)


def sources_of(request: Request) -> Sources:
    """Where the clips are.

    Raises:
        UsageError: nowhere.
    """
    from vidspec.dataset.inputs import Sources

    paths, lists, manifests = (tuple(one or ()) for one in (request.paths, request.from_file, request.manifest))
    if not (paths or lists or manifests):
        raise UsageError("Missing argument 'PATH'.", hint="see `vidspec caption --help`")
    extensions = None
    if request.extensions is not None:
        words = request.extensions.replace(",", " ").split()
        extensions = frozenset(() if words == ["any"] else (word.lower().lstrip("*.") for word in words))
    return Sources(paths, lists, manifests, tuple(request.include or ()), tuple(request.exclude or ()), extensions)


def overrides_of(request: Request) -> dict[str, object]:
    """Options and ``--set`` as dotted keys; the same key by both is refused, since neither is the obvious winner."""
    from vidspec.config import profiles

    overrides: dict[str, object] = {
        key: getattr(request, option) for option, key in KEYS.items() if getattr(request, option) is not None
    }
    prompt = _prompt(request)
    if prompt is not None:
        overrides["generate.prompt"] = prompt
    for setting in request.settings or ():
        try:
            key, value = profiles.setting(setting)
        except ValueError:
            raise UsageError(f"--set {setting}: must be KEY=VALUE, such as prune.alpha=0.8") from None
        if key in overrides:
            raise UsageError(f"--set {setting}: {key} is set twice on this command line")
        overrides[key] = value
    return overrides


def _prompt(request: Request) -> str | None:
    if request.style is not None:
        from vidspec.config.prompts import style

        return style(request.style)
    if request.prompt_file is None:
        return request.prompt[0] if request.prompt and len(request.prompt) == 1 else None
    said = f"--prompt-file {request.prompt_file}"
    try:
        text = read_whole(request.prompt_file, LONGEST_PROMPT, said).decode("utf-8").strip()
    except UnicodeDecodeError:
        raise UsageError(f"{said}: is not UTF-8 text") from None
    if not text:
        raise UsageError(f"{said}: is empty")
    return text


def forms_of(request: Request, defaults: Defaults) -> tuple[Format, ...]:
    """The formats: the option's, what the suffix of the one output file names, the config's, or text."""
    from vidspec.dataset.formats import FORMATS, format_of

    if request.form is not None:
        said, where = request.form, f"--format {request.form}"
    elif request.output is not None and (form := format_of(request.output)) is not None:
        return (form,)
    else:
        said, where = defaults.format or "text", f"{defaults.path}: format"
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


def how_of(request: Request, profile: Profile, total: int) -> JobConfig:
    """How every clip is done.

    Raises:
        UsageError: a wrong --segment, a package that is missing, or --verify where correct captions differ from plain
            decoding's.
    """
    from vidspec.dataset.job import JobConfig, Questions
    from vidspec.dataset.segments import parse_segment

    if request.verify and not profile.token_for_token:
        raise UsageError(
            f"--verify compares tokens, and those that {profile.name} draws with temperature "
            f"{profile.generate.temperature:g} are plain decoding's in distribution only",
            hint="temperature 0, or --set draft.gamma=auto, which drafts greedily",
        )
    video = profile.video.arguments
    if request.segment == "scenes":
        _installed("--segment scenes", "PySceneDetect", ("scenedetect", "cv2"), "pip install 'vidspec[scenes]'")
    if video["decoder"] == "decord":
        _installed("--decoder decord", "decord", ("decord",), "pip install decord, or --decoder auto")
    if video["decoder"] not in ("auto", "av", "decord"):
        from vidspec.video.decode_hardware import HardwareDecoder

        HardwareDecoder(video["decoder"])  # says so where there is none
    if request.engine is EngineName.ray:
        _installed("--engine ray", "Ray", ("ray",), "pip install 'vidspec[ray]'")
    several = request.turn or (request.prompt if request.prompt and len(request.prompt) > 1 else None)
    return JobConfig(
        video=video,
        prompt=profile.generate.prompt,
        questions=Questions(tuple(several), bool(request.turn)) if several else None,
        segment=parse_segment(request.segment),
        context=request.context,
        baseline=request.baseline,
        verify=request.verify,
        timeout=request.timeout,
        batch=1 if request.baseline else batch_of(request.batch),
        ahead=request.ahead,
        total=total,
    )


def parameters(request: Request) -> Mapping[str, Any]:
    """The options as plain values, for the log."""
    return {key: getattr(value, "value", value) for key, value in vars(request).items() if value not in (None, False)}
