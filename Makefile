# EDL. `make help` says what there is.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# Else pytest rewrites the assertions of all tests anew in each of its processes: that takes longer than to collect them.
unexport PYTHONDONTWRITEBYTECODE

VENV ?= .venv
BIN := $(VENV)/bin
# The first Python that works and is new enough.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
  $$p -c 'import sys; sys.exit(not (3,11) <= sys.version_info[:2] < (3,14))' >/dev/null 2>&1 && { echo $$p; break; }; done)
# What is installed: RUNTIME what trains and what compiles native code, STAMP the tools of development and of the docs, too.
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed
DEMO ?= demo-data
# Of `make chaos`.
SEED ?= 1
MODE ?= async
SECONDS_OF_FAULTS ?= 360
WORKERS ?= 2
# A test that starts processes can meet a busy machine: it gets a second try, and the report says RERUN with the first
# failure. `make test ONCE_MORE=` allows none.
ONCE_MORE ?= --reruns 1 -rR

# Of `make third`: it changes with every run of a workflow, elsewhere with every commit.
EDL_TEST_THIRD ?= $(shell expr $${GITHUB_RUN_NUMBER:-$$(git rev-list --count HEAD 2>/dev/null || echo 0)} % 3)

.PHONY: help setup demo test test-all check static lint types layers together unit native native-test sanitizers \
  sanitizers-once sanitizers-beside charts jobs faults faults-all third repetitions left-out chaos dist dist-test images e2e e2e-all \
  bench proto generate reference chart-schema chart-docs kustomize docs recording schema constraints clean

help: ## print every target
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):[^#]*## (.*)/  \1\t\2/' | expand -t 16

INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable

$(RUNTIME): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "EDL needs Python 3.11, 3.12 or 3.13 (as python3, python3.11 ...), and none was found."; exit 2; }
	@echo "Setting up $(VENV) with $(PYTHON): TensorFlow is about 300 MB to download, all takes 2.2 GB on disk and a few minutes once."
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[train,native]'
	@touch $@

$(STAMP): $(RUNTIME) elasticdl-compat/pyproject.toml
	$(INSTALL) '.[train,dev,docs,native]' --editable ./elasticdl-compat
	@# For the tests of models of Keras 2. It requires the distribution tensorflow, and works as well with tensorflow-cpu.
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --no-deps tf_keras
	@touch $@

setup: $(STAMP) native ## make the virtual environment and compile native code (the other targets do it themselves)

demo: native ## train MNIST-format digits on this machine while a worker is killed half-way
	@test -e $(DEMO)/mnist/train || $(BIN)/edl data mnist $(DEMO)/mnist --format recordio --source digits --records 12000
	@$(BIN)/edl inject worker:KILL@50% -- $(BIN)/edl run model_zoo/mnist/job.yaml --workers $(WORKERS)

test: check ## what CI runs: format, lint, types, layers, tests
test-all: export EDL_TEST_THOROUGH = 1
test-all: check faults-all sanitizers dist-test ## the same with all examples, every fault, sanitizers at length, the wheel in an empty environment
check: static
	@$(MAKE) --no-print-directory together

# One after the other they would leave a core idle. The longest begin.
static: $(STAMP) ## lint, layers, types and charts, two at a time
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=line charts types layers lint

lint: $(STAMP) ## formatting and lint (ruff)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP) ## types of EDL and of the benchmarks (mypy --strict)
	$(BIN)/mypy

layers: $(STAMP) ## who may import whom (import-linter)
	$(BIN)/lint-imports

# Threads of these tests wait for each other at times: three at once.
unit: $(STAMP) native ## tests but for those of whole jobs
	$(BIN)/pytest -q -n 3 --dist loadfile -m "not faults and not jobs and not install and not native and not thorough and not repetition" $(ONCE_MORE)

# cmake and ninja are those of the environment. What is not compiled anew costs a second. Without a C++20 compiler it says so,
# and all goes on without the extensions; with EDL_NATIVE=1 that is an error, and so are skipped tests of them.
NATIVE := PATH="$(CURDIR)/$(BIN):$$PATH" cmake -G Ninja -S platform/edl/numerics/native
SANITIZERS := $(BIN)/python platform/tests/numerics/native/sanitizers.py

# Progress is Ninja's own: a line that counts on a terminal, a line for each file in a log. Nothing is printed where nothing
# is to be done, because every target that starts parameter servers begins with this one.
native: $(RUNTIME) ## compile native code into the package, where there is a C++20 compiler
	@$(NATIVE) -B build/extensions -DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python" --log-level=NOTICE >/dev/null
	@if ! MAKEFLAGS= $(BIN)/ninja -C build/extensions -n | grep -q 'no work to do'; then \
	  echo "Compiling native code; all of it takes a few minutes:"; \
	  MAKEFLAGS= NINJA_STATUS='[%f/%t, %e s] ' $(BIN)/ninja -C build/extensions; fi

# A job that starts or ends leaves a core idle, and so do the last files of a run. All in one run, with the jobs spread over
# it, use both; and what all need is imported once. `make charts` has all of platform/tests/install.
together: $(STAMP) native ## unit tests, those of native code, jobs and faults in one run, as make test has them
	$(BIN)/pytest -q -n 4 --dist loadfile --no-loadscope-reorder --ignore platform/tests/install -m "not install and not thorough and not repetition" platform/tests $(ONCE_MORE)

native-test: $(STAMP) native ## its tests on every instruction set of this processor, and the table under sanitizers
	$(BIN)/pytest -q -n 2 -m native platform/tests/numerics platform/tests/collective $(ONCE_MORE)
	$(SANITIZERS)

sanitizers-once: $(STAMP) native ## the table and reductions without Python under sanitizers, with one seed
	$(SANITIZERS)

# Beside the tests: one compiler at a time, with the processor time that they leave. What it printed comes at its end.
sanitizers-beside: $(STAMP) native
	@mkdir -p build; MAKEFLAGS= CMAKE_BUILD_PARALLEL_LEVEL=1 nice -n 19 $(SANITIZERS) >build/sanitizers.log 2>&1 && cat build/sanitizers.log || { cat build/sanitizers.log; exit 1; }

sanitizers: $(STAMP) native ## the same tests under sanitizers, at length; writes platform/tests/numerics/native/sanitizers.json
	$(SANITIZERS) --full

charts: $(STAMP) ## charts, Kustomize and docs: lint, suites, schemas, drift (wants helm, helm-unittest, helm-docs, kubectl)
	$(BIN)/pytest -q -rs -m "install or not (thorough or repetition)" platform/tests/install

# Of a job that starts or ends, a core is idle at times: three at once.
jobs: $(STAMP) native ## whole jobs on real processes: every feature that a user sees
	$(BIN)/pytest -q -n 3 --dist loadfile -m "jobs and not thorough and not repetition" platform/tests/jobs $(ONCE_MORE)

faults: $(STAMP) native ## the same with real signals: every process is killed
	$(BIN)/pytest -q -n 3 --dist load -m "faults and not thorough and not repetition" platform/tests/faults $(ONCE_MORE)

NO_WHEEL := --ignore platform/tests/install/test_wheel.py

faults-all: $(STAMP) native ## every process is killed at several steps, in every mode, and all that make test leaves out; one test at a time
	EDL_TEST_THOROUGH=1 $(BIN)/pytest -q -m "faults or thorough or repetition" $(NO_WHEEL) $(ONCE_MORE)

# Tests leave a core idle at times, in which native code is compiled for the sanitizers.
third: $(STAMP) native ## a third of what `make test` leaves out: repetitions, property tests with all examples; native code under sanitizers
	@$(MAKE) --no-print-directory --jobs 2 repetitions sanitizers-beside

repetitions: $(STAMP) native
	@echo "EDL_TEST_THIRD=$(EDL_TEST_THIRD): a third of the tests marked repetition, and of the property tests with all their examples"
	EDL_TEST_THOROUGH=1 $(BIN)/pytest -q -n 2 --dist loadfile -m "(repetition or examples) and not thorough" platform/tests --third $(EDL_TEST_THIRD) $(NO_WHEEL) $(ONCE_MORE)

left-out: $(STAMP) ## list the tests that `make test` leaves out
	@$(BIN)/pytest --collect-only -q -m "repetition or thorough" platform/tests

chaos: $(STAMP) native ## random signals to every role of a counting job: SEED=7 MODE=async|sync|overlap|one-ps|all-reduce|global-batch, six minutes
	PYTHONPATH=platform/tests $(BIN)/python -m chaos --seed $(SEED) --mode $(MODE) --seconds $(SECONDS_OF_FAULTS)

# The wheel is built from the sdist, so that both are known to be whole, with the versions of this environment. EDL_NATIVE=0
# builds one without native code, for all machines.
dist: $(STAMP) ## build an sdist and a wheel with native code into dist/, and those of elasticdl-compat
	@rm -rf dist
	PATH="$(CURDIR)/$(BIN):$$PATH" EDL_NATIVE="$${EDL_NATIVE:-1}" $(BIN)/python -m build --no-isolation
	$(BIN)/python -m build --no-isolation --outdir dist elasticdl-compat

dist-test: dist ## install that wheel into an empty environment, without extras, and use it there
	$(BIN)/pytest -q -m thorough platform/tests/install

images: $(STAMP) ## build the training image and the submitter image with the Docker engine
	$(BIN)/python -m e2e.images --build

e2e: $(STAMP) ## whole jobs on the cluster of KUBECONFIG, or on a kind cluster that it makes (docs/testing.md)
	BIN=$(BIN) e2e/run

e2e-all: $(STAMP) ## the same with every fault at every step, installed with Helm and with Kustomize
	BIN=$(BIN) e2e/run --all

bench: $(STAMP) native ## measure; results go to bench/results and docs/benchmarks.md
	$(BIN)/python bench/run_all.py

proto: $(STAMP) ## generate the messages' code from edl.proto
	$(BIN)/python -m grpc_tools.protoc -Iplatform --python_out=platform --pyi_out=platform --grpc_python_out=platform platform/edl/transport/edl.proto

generate: reference chart-schema chart-docs kustomize ## write all that is generated from something else; `make charts` checks it

reference: $(STAMP) ## write the reference pages of docs/ from schema and commands
	$(BIN)/python docs/generate

chart-schema: $(STAMP) ## write the values schema of helm/edl-job from the JobSpec's
	$(BIN)/python helm/schema.py

chart-docs: ## write the charts' READMEs from their values (wants helm-docs)
	helm-docs --chart-search-root helm --sort-values-order file

kustomize: $(STAMP) ## write the manifests of kustomize/ from helm/edl (wants helm)
	$(BIN)/python kustomize/generate.py

docs: $(STAMP) ## build the documentation as a site in build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

recording: native ## record the live view of the demo as docs/recording.svg (wants an idle machine)
	@test -e $(DEMO)/mnist/train || $(BIN)/edl data mnist $(DEMO)/mnist --format recordio --source digits --records 12000
	$(BIN)/python docs/generate/recording.py

schema: $(STAMP) ## print the JobSpec's JSON Schema
	@$(BIN)/edl schema

constraints: $(STAMP) ## write the versions of this environment to constraints.txt
	@{ echo '# Versions that were tested together: names and versions only. Refresh with `make constraints`.'; \
	  $(BIN)/pip freeze --exclude-editable | grep -E '^[A-Za-z0-9_.-]+=='; } > constraints.txt

clean: ## remove what was built and trained here (not the virtual environment)
	rm -rf build dist $(DEMO) .edl .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find platform/edl -name '*.so' -delete
