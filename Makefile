# make demo: set up, run the main job, say where its report is.     make test: set up, run the fast tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Where there is no NVIDIA GPU, PyPI's torch for Linux would bring gigabytes of CUDA that nothing here could use.
GPU := $(shell command -v nvidia-smi 2>/dev/null || ls /dev/nvidia0 2>/dev/null)
# vLLM wants other versions, and so an environment of its own.
VLLM := .venv-vllm
VLLM_READY := $(VLLM)/.ready
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
ARGS ?=

.PHONY: setup setup-vllm demo test test-slow test-vllm study-smoke lint clean
.DELETE_ON_ERROR:

setup: $(READY)

setup-vllm: $(VLLM_READY)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than 3.11: install Python 3.11 or newer, or say make PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "no venv module: on Debian, apt-get install python3-venv"; exit 2; }

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	@echo "setting up $(VENV): some minutes, about 2 GB"
ifeq ($(shell uname -s)/$(GPU),Linux/)
	@$(BIN)/pip install --quiet --constraint constraints.txt "torch==$(TORCH)+cpu" 2>/dev/null || \
	  $(BIN)/pip install --quiet "torch==$(TORCH)" --index-url https://download.pytorch.org/whl/cpu
endif
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

$(VLLM_READY): pyproject.toml requirements-vllm.txt
	@$(PYTHON) -m venv $(VLLM)
	@$(VLLM)/bin/pip install --quiet --no-deps --requirement requirements-vllm.txt 2>/dev/null || \
	  $(VLLM)/bin/pip install --quiet --no-deps --requirement requirements-vllm.txt \
	    --extra-index-url https://download.pytorch.org/whl/cpu
	@$(VLLM)/bin/pip install --quiet --no-deps --editable .
	@touch $(VLLM_READY)

demo: setup
	@$(BIN)/whale run $(ARGS)

test: setup
	$(BIN)/python -m pytest $(ARGS)

test-slow: setup
	$(BIN)/python -m pytest -m "slow and not vllm and not hub and not gpu" $(ARGS)

test-vllm: setup-vllm
	$(VLLM)/bin/python -m pytest -m vllm tests/test_vllm*.py $(ARGS)

# the arms that the study is about: with all of them it takes longer than ten minutes
study-smoke: setup
	@$(BIN)/python benchmarks/recipe/run.py --check --domains search-qa --seeds 0 \
	  --arms start weights-only harness-only fst stagewise fixed-0.6-6 adaptive $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) $(VLLM) build dist *.egg-info
