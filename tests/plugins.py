"""What tests of plugins leave behind."""

import sys

from vidspec import registry


def forget_plugins():
    """Take every plugin and what it registered out of this process; methods of vidspec's own stay."""
    plugins = {name for name in sys.modules if name.startswith("vidspec_plugin_")}
    for part in registry._PARTS.values():
        for name in [name for name, method in part._entries.items() if method.__module__ in plugins]:
            del part._entries[name]
    for name in plugins:
        del sys.modules[name]
