"""Command ``vidspec caption``: a run on this terminal."""

from __future__ import annotations

from vidspec.cli.options import TerminalOptions, flatten_options
from vidspec.config.run_spec import RunSpec
from vidspec.errors import UsageError


@flatten_options()
def caption(spec: RunSpec, options: TerminalOptions) -> int:
    """Caption videos: files, whole folders, lists and manifests.

    Captions go to standard output, to FILE or to one file per clip; everything else goes to standard error. If a run
    that writes files is interrupted, run the same command again to resume.

    --help-all shows all options; docs/use/reference.md describes them.

    Exit codes: 0 all clips captioned, 1 some clip failed, 2 usage or profile error,
    3 model or device unavailable, 4 output lost, 129 hung up, 130 interrupted, 143 terminated.
    """
    from vidspec.cli.printed import printed_log
    from vidspec.cli.terminal import TerminalReporter, run_on_terminal
    from vidspec.runs.planning import plan

    if options.quiet and options.verbose:
        raise UsageError("--quiet and --verbose exclude each other")
    reporter = TerminalReporter(options)
    with printed_log(on=options.verbose):
        planned = plan(spec, reporter, prints=True)
    if options.dry_run:
        from vidspec.cli.dry_run import print_plan

        return print_plan(planned)
    return run_on_terminal(planned, reporter)
