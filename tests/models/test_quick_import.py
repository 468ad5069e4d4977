"""The quick import of transformers: what it leaves out, what it must not change, and what ends it. In new processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO

import pytest

from tests.checkpoints import checkpoint
from tests.tiers import in_turn
from vidspec import cli, user_cache
from vidspec.embedded.samples import shipped
from vidspec.models import quick_import

#: Modules that the usual import of a model brings along.
LEFT_OUT = ("torch._dynamo", "torch.distributed.tensor", "torch.distributed.fsdp", "scipy.optimize")


def run_python(program, *arguments):
    """Return what a program prints as JSON in its last line."""
    words = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full
def test_a_command_imports_neither_compiler_nor_distributed_tensors_and_captions_alike():
    words = ["caption", str(shipped()[0]), "--frames", "4", "--max-new-tokens", "20", "--quiet"]
    program = f"""if True:
        import json, sys
        from vidspec.cli import main
        code = main(sys.argv[1:])
        print(json.dumps([code, [name for name in {LEFT_OUT} if name in sys.modules]]))"""
    done = subprocess.run([sys.executable, "-c", program, *words], stdout=subprocess.PIPE, text=True, check=True)
    text, last = done.stdout.rstrip("\n").rsplit("\n", 1)
    assert json.loads(last) == [0, []]
    with redirect_stdout(StringIO()) as printed:
        assert cli.main(words) == 0
    assert printed.getvalue() == f"{text}\n" and len(text) > 20


@pytest.mark.full
def test_families():
    """Operations on tensors without memory are decorated at their first call: each family calls others."""
    families = ["gemma4", "internvl", "llava", "qwen2_5_omni", "qwen2_5_vl", "qwen3_5", "qwen3_vl", "smolvlm"]
    program = f"""if True:
        import json, sys
        from vidspec.models.quick_import import import_transformers
        import_transformers()
        from vidspec.models.loading import load_model
        from vidspec.models.placement import resolve_placement
        loaded = []
        for folder in sys.argv[1:]:
            model = load_model(folder, resolve_placement("cpu", "float32"))
            loaded.append([model.family, [name for name in {LEFT_OUT} if name in sys.modules]])
        print(json.dumps(loaded))"""
    chosen = in_turn(families, 3)
    assert run_python(program, *map(checkpoint, chosen)) == [[family, []] for family in chosen]


@pytest.mark.full
def test_everything_is_there_afterwards():
    program = """if True:
        import json, sys, torch
        from vidspec.models.quick_import import COMPILER, INDEXING, import_transformers
        import_transformers()
        import transformers
        from transformers import masking_utils
        found = [COMPILER in sys.modules, INDEXING in sys.modules, torch.distributed.is_available()]
        with masking_utils.TransformGetItemToIndex():  # imports the compiler, and is its own
            picked = torch.vmap(lambda at: torch.arange(3)[at])(torch.tensor([2, 0]))
        import torch._dynamo
        own = torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
        from torch.distributed.tensor import DTensor
        import_transformers()  # nothing is left to do
        print(json.dumps([found, picked.tolist(), torch._dynamo.config.cache_size_limit > 0, own.item()]))"""
    assert run_python(program) == [[False, False, True], [2, 0], True, 2.0]


@pytest.mark.full
def test_another_name_of_the_compiler_ends_its_stand_in():
    program = """if True:
        import json, sys, torch
        from vidspec.models.quick_import import _without_compiler
        with _without_compiler():
            stands = type(torch._dynamo).__name__
            marked = torch._dynamo.disable(len), torch._dynamo.disable(recursive=False)(len)
            real = torch._dynamo.is_compiling
        import torch._dynamo
        own = [real is torch._dynamo.is_compiling, type(torch._dynamo).__name__, sys.modules["torch._dynamo"].__file__]
        print(json.dumps([stands, marked == (len, len), own[0], own[1], own[2] is not None]))"""
    assert run_python(program) == ["_StandIn", True, True, "module", True]


@pytest.mark.full
def test_an_import_that_fails_is_left_to_others():
    program = """if True:
        import json, sys, torch
        from vidspec.models import quick_import
        quick_import.COMMON += ("transformers.nowhere",)
        quick_import.import_transformers()
        gone = not any(name.partition(".")[0] == "transformers" for name in sys.modules)
        import transformers.modeling_utils
        finders = [type(finder).__name__ for finder in sys.meta_path]
        print(json.dumps([gone, "_UtilitiesFinder" in finders, "torch._dynamo" in sys.modules]))"""
    assert run_python(program) == [True, False, True]


class TestClasses:
    """The list of a folder's classes, kept in the user's cache."""

    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "cache" / name))
        (tmp_path / "models").mkdir()
        (tmp_path / "models" / "__init__.py").touch()
        return tmp_path / "models"

    @pytest.fixture
    def search(self):
        def searched(path):
            searched.paths.append(path)
            return {"llava": {frozenset({"torch"}): {"modeling_llava": {"Llava"}}}}

        searched.paths = []
        return searched

    def kept(self, folder):
        return sorted((folder.parent / "cache" / "vidspec" / "classes").iterdir())

    def test_one_search_serves_folder_and_file_and_later_processes(self, folder, search):
        found = [quick_import._classes(one, search) for one in (folder, folder / "__init__.py", folder)]
        assert search.paths == [folder] and len(self.kept(folder)) == 1
        assert found == [search(folder)] * 3 and found[0] is not found[1]

    def test_folders_in_it_are_searched_as_usual(self, folder, search):
        (folder / "llava").mkdir()
        for _ in range(2):
            quick_import._classes(folder / "llava", search)
        assert len(search.paths) == 2

    def test_a_changed_folder_is_searched_again(self, folder, search):
        (folder / "llava").mkdir()
        quick_import._classes(folder, search)
        os.utime(folder / "llava", ns=(1, 1))
        quick_import._classes(folder, search)
        assert search.paths == [folder] * 2

    @pytest.mark.parametrize(
        "damage", [lambda content: content[:-9], lambda content: content[:40] + b"x" + content[41:]]
    )
    def test_a_damaged_file_is_replaced(self, folder, search, damage):
        quick_import._classes(folder, search)
        (file,) = self.kept(folder)
        file.write_bytes(damage(whole := file.read_bytes()))
        assert quick_import._classes(folder, search) == search(folder)
        assert file.read_bytes()[:16] == quick_import._digest(file.read_bytes()[16:]) and len(whole) > 40

    def test_the_oldest_are_removed(self, folder, search):
        for count in range(user_cache.KEPT + 2):
            (folder / str(count)).mkdir()
            quick_import._classes(folder, search)
        assert len(self.kept(folder)) == user_cache.KEPT

    def test_a_cache_that_cannot_be_written_does_no_harm(self, folder, search):
        (folder.parent / "cache").touch()
        assert [quick_import._classes(folder, search) for _ in range(2)] == [search(folder)] * 2
