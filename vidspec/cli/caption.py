"""``vidspec caption``: its options; what they ask for is put together in ``vidspec.cli.bulk``."""

from __future__ import annotations

from types import SimpleNamespace

import typer

from vidspec.cli import options as o

__all__ = ["caption"]


def caption(
    ctx: typer.Context,
    paths: o.Paths = None,
    profile: o.Profile = None,
    settings: o.Settings = None,
    from_file: o.FromFile = None,
    manifest: o.Manifest = None,
    include: o.Include = None,
    exclude: o.Exclude = None,
    extensions: o.Extensions = None,
    pair: o.Pair = None,
    target: o.Target = None,
    draft: o.Draft = None,
    captioner: o.Captioner = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    frames: o.Frames = None,
    fps: o.Fps = None,
    start: o.Start = None,
    end: o.End = None,
    max_pixels: o.MaxPixels = None,
    decoder: o.Decoder = None,
    allow_damaged: o.AllowDamaged = None,
    segment: o.Segment = None,
    context: o.Context = False,
    prompt: o.Prompt = None,
    prompt_file: o.PromptFile = None,
    style: o.Style = None,
    system: o.System = None,
    max_new_tokens: o.MaxNewTokens = None,
    stop_loops: o.StopLoops = None,
    temperature: o.Temperature = None,
    top_p: o.TopP = None,
    seed: o.Seed = None,
    form: o.Format = None,
    csv_raw: o.CsvRaw = False,
    output: o.Out = None,
    output_dir: o.OutputDir = None,
    name: o.Name = None,
    ordered: o.Ordered = False,
    dry_run: o.DryRun = False,
    log_file: o.LogFile = None,
    notify_every: o.NotifyEvery = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    no_live: o.NoLive = False,
    overwrite: o.Overwrite = False,
    retry_failed: o.RetryFailed = False,
    checksum: o.Checksum = False,
    fail_fast: o.FailFast = False,
    max_failures: o.MaxFailures = None,
    timeout: o.Timeout = None,
    batch: o.Batch = "auto",
    ahead: o.Ahead = 8,
    replicas: o.Replicas = None,
    shard: o.Shard = None,
    engine: o.EngineOption = o.EngineName.local,
    address: o.Address = None,
    baseline: o.Baseline = False,
    verify: o.Verify = False,
    trace: o.Trace = None,
    heatmap: o.Heatmap = None,
    debug: o.Debug = False,
) -> int:
    """Caption videos: files, whole folders, lists and manifests.

    Captions go to stdout, to FILE or to a file for each clip; everything else goes to stderr. A run into files that
    was interrupted goes on where it was when it is given again.

    Exit codes: 0 all captioned, 1 some clip failed, 2 usage or profile error,
    3 model or device unavailable, 130 interrupted, 143 terminated.
    """
    from vidspec.cli.bulk import caption_all

    return caption_all(SimpleNamespace(**ctx.params))
