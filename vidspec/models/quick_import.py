"""A quicker import of transformers, for processes of our own: without what vidspec does not use."""

from __future__ import annotations

import gc
import importlib
import marshal
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from vidspec.user_cache import cache_file, write_cached

COMPILER = "torch._dynamo"
INDEXING = f"{COMPILER}._trace_wrapped_higher_order_op"
UTILITIES = "transformers.utils.import_utils"
#: Modules of transformers that the files of all models import.
COMMON = ("transformers.modeling_utils", "transformers.generation.utils")
#: The compiler's decorators, which change nothing unless a function is compiled.
DECORATORS = frozenset({"allow_in_graph", "assume_constant_result", "disable", "disallow_in_graph"})

#: Bytes of the digests of the lists of classes in the cache, one list for each installation of transformers.
SIZE = 16


def import_transformers() -> None:
    """Import what all models of transformers need, in less than half of the usual time.

    Transformers imports torch's compiler (``torch._dynamo``) for its decorators, ``torch.distributed.tensor`` to
    recognise distributed tensors, and SciPy for the losses of object detectors; and it reads the files of all its
    models, twice, to list their classes. vidspec neither compiles nor distributes nor trains. During this import torch
    therefore looks like a build without ``torch.distributed``, which transformers supports, decorators do nothing, and
    SciPy seems not to be installed; the list of classes is kept in the user's cache folder. Everything else of the
    compiler is imported when it is asked for.

    With the built-in pair ``vidspec caption`` of one clip takes 4.4 s instead of 6.1 (medians of five interleaved runs
    on two cores of an AMD EPYC).

    For processes of our own only: in another program transformers could no longer distribute a model. Does nothing if
    transformers or the compiler has been imported, and leaves the import to others if it fails.
    """
    if COMPILER in sys.modules or "transformers" in sys.modules:
        return
    before, finder = set(sys.modules), _UtilitiesFinder()
    sys.meta_path.insert(0, finder)
    try:
        with _without_compiler():
            for name in COMMON:
                importlib.import_module(name)
    except Exception:  # of a version in which these names mean something else
        for name in [name for name in sys.modules if name not in before and name.partition(".")[0] == "transformers"]:
            del sys.modules[name]
    finally:
        with suppress(ValueError):
            sys.meta_path.remove(finder)
    with suppress(ImportError, ValueError):  # another version of torch decorates in another way
        _skip_lazy_decorators()


def _skip_lazy_decorators() -> None:
    """Keep torch's own functions from importing the compiler at their first call.

    ``torch._compile`` decorates them lazily, operations on meta tensors among them, of which models are built before
    their weights are loaded.
    """
    from torch._compile import _disable_dynamo

    lazy = _disable_dynamo(lambda: None).__code__
    at = lazy.co_freevars.index("fn")
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__ is lazy and one.__closure__:
            function = one.__closure__[at].cell_contents
            function.__dynamo_disable = function


class _UtilitiesFinder:
    """Patches ``transformers.utils.import_utils`` once, right after it is executed."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != UTILITIES:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _patch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _patch(utilities: Any) -> None:
    """Cache the list of model classes in a file, and let SciPy seem missing."""
    search: Callable[[Path], object] = utilities.create_import_structure_from_path
    utilities.create_import_structure_from_path = lambda path: _classes(Path(path), search)
    utilities.is_scipy_available = lambda: False


def _classes(path: Path, search: Callable[[Path], object]) -> object:
    """Return what ``search`` finds in the folder of all models, or of a file there: from the user's cache if known."""
    folder = path.parent if path.is_file() else path
    if folder.name != "models":  # the search calls itself for each folder in it
        return search(path)
    with os.scandir(folder) as entries:
        times = sorted((entry.name, entry.stat().st_mtime_ns) for entry in entries)
    key = _digest(repr((sys.version, str(folder), times)).encode())
    file = cache_file("classes", key.hex())
    with suppress(OSError, EOFError, ValueError, TypeError):
        content = file.read_bytes()
        if content[:SIZE] == _digest(content[SIZE:]):
            known: object = marshal.loads(content[SIZE:])
            return known
    found: Any = search(path)
    with suppress(ValueError):
        content = marshal.dumps(found)
        write_cached(file, _digest(content) + content)
    return found


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=SIZE).digest()


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Replace the compiler's modules by stubs, and let ``torch.distributed`` seem missing."""
    import torch.distributed

    def release() -> None:
        for name, module in standing.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        if torch.__dict__.get("_dynamo") is standing[COMPILER]:
            del torch._dynamo

    standing = {name: _StandIn(name, release) for name in (COMPILER, INDEXING)}
    is_available = torch.distributed.is_available
    sys.modules.update(standing)
    torch._dynamo = standing[COMPILER]
    torch.distributed.is_available = lambda: False
    try:
        yield
    finally:
        torch.distributed.is_available = is_available
        release()


class _StandIn(ModuleType):
    """A stub of a module: its decorators do nothing; for any other name the real module is imported."""

    def __init__(self, name: str, release: Callable[[], None]) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self._release = release

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in DECORATORS:
            return _return_function
        if name == "TransformGetItemToIndex":  # of which masks for vmap make instances
            return lambda: importlib.import_module(INDEXING).TransformGetItemToIndex()
        self._release()
        return getattr(importlib.import_module(self.__name__), name)


def _return_function(function: Callable[..., Any] | None = None, *_: object, **__: object) -> Any:
    """Return the function, or the decorator that does, if this is called with options only."""
    return function if function is not None else _return_function
