# Everything runs in .venv here, which is made once and again only when what is to be installed has changed.
#
#   make caption [CLIP=path] [ARGS="--profile ar ..."]   caption a shipped clip, or another
#   make lint                                            ruff and mypy
#   make test [ARGS="-k caption ..."]                    the tests of what any change may break: minutes
#   make test-rest [ARGS=...]                            the tests that it leaves out, marked "full": a quarter of an hour
#   make test-all [ARGS=...]                             both
#   make test-research [ARGS=...]                        every test of research/
#   make test-lowest [ARGS=...]                          quick tests with the lowest versions of all requirements
#   make sweep [ARGS="-k internvl ..."]                  every test, and every lossless profile of every family over 20 random
#                                                        models: hours
#   make bench [ARGS=...]                                measure profiles
#   make evidence [ARGS="--again"]                       measure all that the pages say, and write them: hours
#   make evidence ARGS=--quick                           the README's table here, beside the published one: minutes
#   make real-text [ARGS="--count 64"]                   a target whose language is a real model's, in .cache/real-text
#   make docs                                            the site of docs/ and of the measured results, in site/; broken
#                                                        links are errors
#   make peers                                           environments with OpenVINO and vLLM for research.peers
#   make gpu [ARGS=...] [SMOKE=1] [OUT=DIR]              test and measure on an NVIDIA GPU; without one, say so, or with
#                                                        SMOKE=1 run small versions on the CPU
#   make gpu-records, gpu-train, gpu-rounds, gpu-sizes,
#        gpu-folder, gpu-tests                           its parts, of about three minutes each
#   make gpu-prepared                                    the most valuable of them in nine minutes
#   make gpu-carry [FOR=3.12]                            what a GPU machine without a network lacks: runs/carry
#
# PYTHON=python3.12 makes .venv with another Python. pip's own configuration and PIP_* variables are honoured.

PYTHON ?= python3
CLIP ?= vidspec/embedded/clips/three-objects.mp4
ARGS ?=
PEERS ?= openvino vllm

VENV := .venv
BIN := $(VENV)/bin
INPUTS := pyproject.toml vidspec/_version.py constraints/cpu.txt
# Without an NVIDIA GPU: a pinned torch, of which pip prefers the CPU build ("+cpu") wherever an index offers it; from
# PyTorch's own index, unless pip is configured to look elsewhere.
HAS_GPU = nvidia-smi -L >/dev/null 2>&1
CPU_INDEX := https://download.pytorch.org/whl/cpu
LOOKS_ELSEWHERE = $(BIN)/python -m pip config list | grep -E "index-url|find-links" > /dev/null
PIP_INSTALL = if $(HAS_GPU); then set --; else set -- -c constraints/cpu.txt; \
	$(LOOKS_ELSEWHERE) || set -- "$$@" --extra-index-url $(CPU_INDEX); fi; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$@"

.PHONY: caption test test-rest test-all test-research test-lowest sweep lint docs bench evidence real-text peers gpu gpu-sizes gpu-rounds gpu-folder gpu-tests gpu-records gpu-train gpu-prepared gpu-carry clean

caption: $(VENV)/installed
	@$(BIN)/vidspec caption "$(CLIP)" $(ARGS)
	@command -v vidspec >/dev/null || echo "vidspec is in $(VENV): source $(BIN)/activate puts it on this shell's PATH;" \
		"uv tool install or pipx install, as the README has them, for good" >&2

# Each process takes a stretch of the tests, and from others what they have left: few files are begun by more than one.
PARALLEL := -m pytest -q --numprocesses=auto --maxprocesses=8 --dist=worksteal --durations=10
# Compiled modules are kept in any case: all processes, and the commands that tests start, would compile them again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python $(PARALLEL)

test: $(VENV)/installed-test
	@$(PYTEST) -m "not full and not gpu" --ignore=tests/gpu --ignore=tests/research $(ARGS)

test-rest: $(VENV)/installed-test
	@$(PYTEST) -m "full or gpu" --ignore=tests/research $(ARGS)

test-all: $(VENV)/installed-test
	@$(PYTEST) --ignore=tests/research $(ARGS)

test-research: $(VENV)/installed-test
	@$(PYTEST) tests/research $(ARGS)

# What depends on the versions of other packages: loading, families, video, lossless profiles; of the engine what stock
# models compute (torch is the same); of the commands what parses, refuses and prints.
LOWEST := $(VENV)/lowest
LOWEST_TESTS := tests/models tests/video tests/test_captioner.py tests/test_garbage.py tests/test_lossless.py \
	tests/test_versions.py $(patsubst %,tests/engine/test_%.py,fused penalties recurrent run tapped taps visual_states) \
	$(patsubst %,tests/cli/test_%.py,ask bench caption commands config json models options profile report)

test-lowest: $(LOWEST)/installed
	@PYTHONDONTWRITEBYTECODE= $(LOWEST)/bin/python $(PARALLEL) -m "not full and not gpu" $(LOWEST_TESTS) $(ARGS)

$(LOWEST)/installed: pyproject.toml vidspec/_version.py constraints/lowest.txt | $(BIN)/python
	@echo "installing the lowest versions that pyproject.toml allows into $(LOWEST); this takes minutes, once" >&2
	@$(PYTHON) -m venv --clear $(LOWEST)
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints/lowest.txt \
		-e '.[data,plots,scenes,split]' hypothesis jsonschema pysubs2 pytest pytest-xdist scipy
	@touch $@

sweep: $(VENV)/installed-test
	@VIDSPEC_EVERY=1 $(PYTEST) --ignore=tests/research tests/sweep_lossless.py tests $(ARGS)

lint: $(VENV)/installed-test
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy

docs: $(VENV)/installed-docs
	@$(BIN)/python -m research.evidence --site
	@$(BIN)/python -m zensical build --clean --strict

bench: $(VENV)/installed
	@$(BIN)/vidspec bench $(ARGS)

evidence: $(VENV)/installed-test
	@$(BIN)/python -m research.evidence $(ARGS)

real-text: $(VENV)/installed-test
	@$(BIN)/python -m research.realtext $(ARGS)

peers: $(foreach name,$(PEERS),$(VENV)/peers/$(name)/installed)
	@echo "python -m research.peers$(foreach name,$(PEERS), --peer $(name)=$(VENV)/peers/$(name)/bin/python)"

# vLLM fails where torchaudio or torchcodec was built for another torch, and needs neither.
$(VENV)/peers/%/installed: constraints/peers/%.txt constraints/peers/sitecustomize.py
	@echo "installing $< into $(@D); this takes minutes, once" >&2
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@$(@D)/bin/python -m pip uninstall --quiet --yes torchaudio torchcodec 2>/dev/null
	@$(@D)/bin/python -c 'import torchvision' 2>/dev/null || cp constraints/peers/sitecustomize.py \
		"$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	@touch $@

# A GPU machine may have no network: where PYTHON or .venv, alone or with SITE, has all of NEEDED, nothing is installed;
# SITE is made of the wheels that were carried there.
SITE ?= runs/carry/site
WHEELS ?= $(wildcard runs/carry/wheels/*.whl)
FRAMES ?= $(wildcard runs/carry/frames.npz)
OUT ?= runs/gpu
NEEDED := jinja2 numpy PIL platformdirs pydantic pytest rich safetensors srt tokenizers torch transformers \
	typer wcmatch webvtt yaml
gpu gpu-sizes gpu-rounds gpu-folder gpu-tests gpu-records gpu-train:
	@if [ -z "$(SMOKE)" ] && ! $(HAS_GPU); then echo "no NVIDIA GPU here: nothing was run"; exit; fi; \
	has() { "$$1" -c 'import importlib, sys; [*map(importlib.import_module, sys.argv[1:])]' $(NEEDED) 2>/dev/null; }; \
	before=$$PYTHONPATH; export PYTHONPATH="$(CURDIR):$$before"; python=; \
	for one in $(PYTHON) $(BIN)/python; do has $$one && python=$$one && break; done; \
	if [ -z "$$python" ]; then \
		if [ -n "$(WHEELS)" ] && ! [ -d "$(SITE)" ]; then \
			$(PYTHON) -m pip install --quiet --no-index --no-deps --no-compile --target "$(SITE)" $(WHEELS); \
		fi; \
		export PYTHONPATH="$(CURDIR):$(CURDIR)/$(SITE):$$before"; \
		has $(PYTHON) && python=$(PYTHON); \
	fi; \
	if [ -z "$$python" ]; then \
		export PYTHONPATH="$(CURDIR):$$before"; \
		$(MAKE) --no-print-directory $(VENV)/installed-test && python=$(BIN)/python || exit 1; \
	fi; \
	$$python -m research.gpu $(or $(GPU_PARTS),$(filter-out gpu,$(@:gpu-%=%))) --out "$(OUT)" \
		$(if $(SMOKE),--smoke) $(if $(FRAMES),--frames "$(FRAMES)") $(ARGS)

# Exactness, a folder from frames to records, training, rounds, and 32B in four bits: each part with its minutes.
gpu-prepared:
	@$(MAKE) --no-print-directory gpu GPU_PARTS="tests:2 records:2.3 train:1.2 rounds:1.3" \
		ARGS="--sizes 7B --drafts none,dflash,dspark,selector $(ARGS)"; first=$$?; \
	$(MAKE) --no-print-directory gpu GPU_PARTS="rounds:0.7" OUT="$(OUT)/int4" \
		ARGS="--sizes 32B --weights int4 --drafts none,eagle3,dflash $(ARGS)" && exit $$first

# For a GPU machine with torch, transformers and no network: decoded clips, and the other packages' wheels for its Python
# FOR. With all tracked files they are at most 64 MiB.
FOR ?= 3.12
PIP = $(BIN)/python -m pip --quiet --disable-pip-version-check
gpu-carry: $(VENV)/installed-test
	@rm -rf runs/carry/site runs/carry/wheels
	@$(BIN)/python -m research.gpu frames --frames runs/carry/frames.npz
	@$(PIP) download --only-binary=:all: --python-version $(FOR) --implementation cp --platform manylinux2014_x86_64 \
		--platform manylinux_2_28_x86_64 --dest runs/carry/wheels platformdirs pydantic wcmatch webvtt-py
	@$(PIP) wheel --no-deps --wheel-dir runs/carry/wheels srt
	@{ git ls-files -z; find runs/carry -type f -print0; } | xargs -0 stat -c %s | awk '{ size += $$1 } \
		END { printf "%.1f MiB with all tracked files\n", size / 2^20; exit size >= 2^26 }' \
		|| { echo "that is more than 64 MiB" >&2; exit 1; }

clean:
	rm -rf $(VENV) build dist site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find vidspec research tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11; name another: make PYTHON=python3.12" >&2; exit 1; }
	@echo "making $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/installed: $(INPUTS) | $(BIN)/python
	@echo "installing vidspec and what it needs into $(VENV); this takes minutes, once" >&2
	@$(HAS_GPU) || echo "no NVIDIA GPU found: taking the CPU build of torch" >&2
	@$(PIP_INSTALL) -e .
	@$(HAS_GPU) || $(BIN)/python -c 'import sys, torch; torch.version.cuda and print("note: no NVIDIA GPU is here, " \
		"yet pip chose the CUDA build of torch, from the index it is configured to use; it works but is large. " \
		"PIP_EXTRA_INDEX_URL=$(CPU_INDEX) make clean caption has the small one.", file=sys.stderr)'
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	@echo "installing what the tests need into $(VENV)" >&2
	@$(PIP_INSTALL) -e '.[test]'
	@touch $@

$(VENV)/installed-docs: $(VENV)/installed
	@echo "installing what the site needs into $(VENV)" >&2
	@$(PIP_INSTALL) -e '.[docs]'
	@touch $@
