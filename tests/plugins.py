"""Removal of what tests of plugins leave behind."""

import sys

from vidspec.config.schema import PARTS


def forget_plugins():
    """Take every plugin and what it registered out of this process; methods of vidspec's own stay."""
    plugins = {name for name in sys.modules if name.startswith("vidspec_plugin_")}
    for name in plugins:
        for part in PARTS.values():
            part.forget(name)
        del sys.modules[name]
