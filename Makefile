# On a fresh machine `make run` and `make test` do everything; both set up what is missing in .venv/ first.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run test test-all test-slow lint format bench lock clean runtime dev

PYTHON ?= python3
export PYTHON TORCH_INDEX
# Empty is unset: without what was compiled once, each of the many processes below compiles torch and all else anew.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
TESTS := $(BIN)/pytest
# Tests that watch the clock so closely that nothing may run beside them.
CLOCK := e2e/browser/test_speed e2e/statements/test_limits e2e/test_budget e2e/test_engine_prefix \
	e2e/test_engine_supervision e2e/test_flight_memory e2e/test_flight_pressure e2e/test_latency e2e/test_ledger \
	e2e/test_semantic_process e2e/test_shutdown e2e/test_slow_readers test_benchmarks test_semantic_benchmark
ALONE := tests/faults $(CLOCK:%=tests/%.py)
TOGETHER := -n 2 --dist loadfile $(ALONE:%=--ignore=%)
# ARGS="-k name" may select tests of one kind only.
MAY_BE_NONE := || [ $$? -eq 5 ]

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-15s %s\n", $$1, $$2}'

run: runtime ## start the gateway; PORT=9000, CONFIG=refrain.yaml or ARGS="..." are passed on to `refrain serve`
	@exec $(BIN)/refrain serve $(if $(CONFIG),--config "$(CONFIG)") $(if $(PORT),--port "$(PORT)") $(ARGS)

test: lint ## lint, types, import contract and every test but the slow ones; ARGS="-k name" and the like are passed on
	@echo "check 5/6: tests that may run beside others, two at a time"
	@$(TESTS) -m "not slow" $(TOGETHER) $(ARGS) $(MAY_BE_NONE)
	@echo "check 6/6: tests that watch the clock, one at a time"
	@$(TESTS) -m "not slow" $(ALONE) $(ARGS) $(MAY_BE_NONE)

test-all: test test-slow ## the same, and the slow tests

test-slow: dev
	@echo "slow tests 1/2: two at a time"
	@$(TESTS) -m slow $(TOGETHER) $(ARGS) $(MAY_BE_NONE)
	@echo "slow tests 2/2: one at a time"
	@$(TESTS) -m slow $(ALONE) $(ARGS) $(MAY_BE_NONE)

lint: dev ## what `make test` checks before the tests
	@echo "check 1/6: lint"
	@$(BIN)/ruff check --quiet
	@echo "check 2/6: format"
	@$(BIN)/ruff format --check --quiet
	@echo "check 3/6: types"
	@$(BIN)/mypy --no-error-summary
	@echo "check 4/6: import contract"
	@$(BIN)/lint-imports --no-logo > .venv/imports.log || { cat .venv/imports.log; exit 1; }

format: dev ## rewrite the code in the project's style
	@$(BIN)/ruff check --fix --quiet
	@$(BIN)/ruff format

bench: dev ## the benchmarks; ARGS=streams, ARGS="hits --json" and the like are passed on
	@$(BIN)/python -m benchmarks $(ARGS)

COMPILE = CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --extra local --generate-hashes --allow-unsafe \
	--strip-extras --no-emit-options --no-emit-index-url --no-emit-find-links --no-emit-trusted-host $(ARGS) \
	pyproject.toml requirements/setup.in

lock: dev ## compile requirements/*.lock anew after a change of dependencies; ARGS=--upgrade takes the newest
	@echo "lock 1/2: requirements/runtime.lock (minutes: every file of every package is hashed)"
	@$(COMPILE) --output-file requirements/runtime.lock
	@echo "lock 2/2: requirements/dev.lock"
	@$(COMPILE) --extra dev --constraint requirements/runtime.lock --output-file requirements/dev.lock

clean: ## remove what was installed and cached here, but no data
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis \
		tests/e2e/node/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

runtime dev:
	@scripts/setup $@
