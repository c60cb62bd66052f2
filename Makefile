# Every target sets up what it needs: a virtual environment in .venv, the package, and the GL libraries.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
DEMO_OUTPUT ?= demo-output

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow attacks mutants check bench clean

help:
	@echo "make setup | demo | test | test-slow | attacks | mutants | check | bench | clean"

setup: $(STAMP)

$(STAMP): pyproject.toml requirements.lock scripts/setup.sh
	PYTHON=$(PYTHON) sh scripts/setup.sh
	@touch $(STAMP)

# Policies are trained with torch (CPU build), which nothing else of the set-up needs.
demo: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e ".[demo,dev,train]"
	$(BIN)/twinloop demo --output $(DEMO_OUTPUT)

test: $(STAMP)
	$(BIN)/python -m pytest -n auto

# Also adds what is optional and large, so that it is tested too: Warp, torch (CPU build), Ray, S3, Gymnasium's PPO.
test-slow: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e ".[demo,dev,slow]"
	$(BIN)/python -m pytest -m "not gpu and not network and not bench" -n auto

# Every attack, the slow campaigns included; prints counts and writes the table of docs/evidence/attacks.md.
attacks: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock \
		-e ".[demo,dev,light]"
	TWINLOOP_WRITE_ATTACKS=docs/evidence/attacks.md $(BIN)/python -m pytest tests/hostile -m "not gpu and not network" -n auto

# The mutation score of 100 random changes of the code; ended early, it goes on where it was.
mutants: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e ".[demo,dev,slow]"
	$(BIN)/python scripts/mutate.py --count 100

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m benchmarks speed

clean:
	rm -rf .venv build dist demo-output bench-output .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
