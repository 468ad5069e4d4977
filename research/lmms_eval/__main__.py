"""``python -m research.lmms_eval``: LMMs-Eval's own command line, with ``vidspec`` among its models."""

from __future__ import annotations

from research.lmms_eval import manifest


def main() -> None:
    """Add the model to the harness's registry, then run the harness on the process's arguments."""
    from lmms_eval.__main__ import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        cli_evaluate,
    )
    from lmms_eval.models import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        MODEL_REGISTRY_V2,
    )

    MODEL_REGISTRY_V2.register_manifest(manifest(), overwrite=True)
    cli_evaluate()


if __name__ == "__main__":
    main()
