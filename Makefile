# The commands of the book. `make` alone lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SITE := _build/html/.ready
NEW := _build/.new
LOG := $(VENV)/build.log
JOBS ?= 2
IN_PARALLEL := -n $(JOBS) --dist loadfile
INDEX := _build/html/index.html

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help book test test-slow workshop pdf results execute lint format serve clean stamp test-colab linkcheck check-notebooks install site

# One thread: the same rounding on every machine, and no fight for cores. Nothing below asks the network for a model.
export OMP_NUM_THREADS ?= 1
export PYTHONHASHSEED := 0
# Memory that a tensor gave back is kept for the next one: a tenth to a fifth of a chapter's time. Other systems than Linux ignore it.
export MALLOC_TRIM_THRESHOLD_ ?= 4000000000
export MALLOC_MMAP_THRESHOLD_ ?= 4000000000
export HF_HUB_OFFLINE := 1
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false
export TQDM_DISABLE := 1
export WANDB_MODE := disabled
export PIP_DISABLE_PIP_VERSION_CHECK := 1

SOURCES := _config.yml _toc.yml $(wildcard book/*.md book/*.bib book/_static/*.* book/tools/vendor*.py book/tools/package-lock.json book/tools/chapter_map.py book/tools/accessible.py notebooks/*.ipynb)

help:  ## list the commands
	@echo "make book     install what is missing, build the book, print the file to open"
	@echo "make test     unit tests, every cell of every chapter, the built site"
	@echo "make test-slow  what takes longer: every case of the searches, chapters with broken code, a browser"
	@echo "make workshop write all that a workshop needs, for use without a network, into dist/workshop"
	@echo "make pdf      print the whole book into dist/transformer-circuits.pdf (needs Chromium)"
	@echo "make results  measure the comparison of methods again and write its tables (several minutes)"
	@echo "make execute  run all chapters again and write them in canonical form"
	@echo "make lint     check the code and the notebooks with ruff"
	@echo "make format   let ruff format the code and the notebooks"
	@echo "make serve    build the book and serve it at http://localhost:8000"
	@echo "make clean    remove the built book and $(VENV)"
	@echo "make stamp REPO=owner/name REF=v0.1.0  write the address of the published book everywhere; REPO= REF= takes it out"
	@echo "make test-colab  install the newest allowed versions as Colab would, and run chapter 1 (needs a network)"
	@echo "make linkcheck   ask every address that the book links to (needs a network)"

book: check-notebooks site
	@echo "==> Open this file: file://$(CURDIR)/$(INDEX)"

test: check-notebooks site
	@echo "==> Running the unit tests, and checking the built site"
	@$(BIN)/python -m pytest $(IN_PARALLEL) tests
	@echo "==> Running every cell of every chapter, and comparing its output with the committed one"
	@$(BIN)/python -m pytest $(IN_PARALLEL) -p no:cacheprovider --nbval --nbval-current-env --nbval-cell-timeout=600 \
	    --nbval-kernel-startup-timeout=180 --nbval-sanitize-with tests/nbval_sanitize.cfg notebooks/*.ipynb
	@echo "==> All tests passed"

test-slow: check-notebooks site
	@echo "==> Running the slow tests"
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -rs --durations=15 -m slow tests
	@echo "==> All slow tests passed"

test-colab: check-notebooks install
	@echo "==> Installing as Colab would, and running chapter 1"
	@NEED_INDEX=1 $(BIN)/python -m pytest -m slow -s tests/test_colab.py

linkcheck: check-notebooks install
	@echo "==> Asking every address that the book links to"
	@rm -rf _build/linkcheck
	@$(BIN)/jupyter-book build . --builder linkcheck --path-output _build/linkcheck > $(LOG) 2>&1 || { grep -hs "\[broken\]" _build/linkcheck/_build/html/output.txt | cut -c 1-200 >&2 || tail -n 30 $(LOG) >&2; echo "error: not every address answered" >&2; exit 1; }

workshop: check-notebooks site
	@echo "==> Writing dist/workshop"
	@$(BIN)/python book/tools/workshop.py
	@echo "==> Read dist/workshop/README.md first"

pdf: check-notebooks site
	@echo "==> Printing the book (a few minutes)"
	@$(BIN)/python book/tools/pdf.py

results: install
	@echo "==> Measuring three tasks with seven methods, and writing circuitlib/results"
	@TQDM_DISABLE= $(BIN)/python book/tools/results.py

execute: check-notebooks install
	@echo "==> Running all chapters"
	@$(BIN)/python book/tools/notebooks.py execute

lint: install
	@echo "==> Checking the code and the notebooks"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: install
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

serve: book
	@echo "==> Serving the book at http://localhost:8000 (stop with Ctrl-C)"
	@$(BIN)/python -m http.server 8000 --bind 127.0.0.1 --directory _build/html

# Before anything is installed, so with plain Python. The variables reach it through the environment, whatever they hold.
stamp:
	@$(PYTHON) book/tools/stamp.py $${REPO+--repo="$$REPO"} $${REF+--ref="$$REF"}

clean:
	@rm -rf _build $(VENV) book/_static/vendor book/tools/node_modules
	@echo "==> Removed _build, $(VENV) and the scripts that the pages use"

check-notebooks:
	@ls notebooks/*.ipynb > /dev/null 2>&1 || { echo "error: notebooks/ holds no chapter; this is not a whole copy of the book" >&2; exit 1; }

install: $(READY)
site: $(SITE)

# Installed anew when a version changes. The package itself is installed in place: a change of its code needs nothing.
$(READY): requirements.txt pyproject.toml
	@command -v $(PYTHON) > /dev/null || { echo "error: $(PYTHON) not found; install Python 3.11 or newer, or say which: make PYTHON=python3.11 …" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1 | cut -d" " -f2); say which: make PYTHON=python3.11 …" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { echo "error: $(PYTHON) has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@if [ ! -x $(BIN)/python ]; then echo "==> Creating $(VENV)"; rm -rf $(VENV); $(PYTHON) -m venv $(VENV); fi
	@echo "==> Installing the exact versions of requirements.txt (a few minutes the first time: PyTorch is large)"
	@$(BIN)/python -m pip install --quiet -r requirements.txt || { echo "error: the installation failed; see the lines above" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e . || { echo "error: circuitlib could not be installed; see the lines above" >&2; exit 1; }
	@touch $@

# Built beside the last good site, which stays until the new one is whole.
$(SITE): $(READY) $(SOURCES)
	@echo "==> Building the book"
	@$(BIN)/python book/tools/vendor.py
	@rm -rf $(NEW)
	@$(BIN)/jupyter-book build . --path-output $(NEW) -W -n --keep-going > $(LOG) 2>&1 || { grep -E "WARNING|ERROR|rror:" $(LOG) >&2 || tail -n 30 $(LOG) >&2; echo "error: the book was not built, because of the lines above ($(LOG) has all)" >&2; exit 1; }
	@touch $(NEW)/_build/html/.ready
	@if [ -e _build/html ]; then mv _build/html $(NEW)/old; fi; mv $(NEW)/_build/html _build/html
	@rm -rf $(NEW)
