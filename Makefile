# make demo       synthetic pedestrians: generate, train, evaluate, draw
# make demo-seps  synthetic shapes with captions: generate, train SEPS, evaluate
# make test       the fast tests, which cover every module and command: three minutes on two cores
# make test-slow  the slow tests: killed runs, studies, benchmarks, compiled models, several processes
# make test-all   both, or those of a marker: TESTS='not soak' make test-all
# make test-seeds the numeric tests with five seeds, as this processor is and as others compute: runs/seeds.json (half an hour)
# make mutants    mistakes planted in the package, which the tests must notice: ARGUMENTS='--only evaluation/' (an hour for all)
# make test-hosts the plug-in on checkouts of the code bases that it knows: HOSTS=<folder> make test-hosts (half an hour)
# make lint       ruff (format and rules) and mypy
# make study      the variants of studies/ that docs/results/ does not hold yet (all of them: half a day on two cores); then make tables;
#                 a result of another version is refused: remove it first
# make tables     the tables and the figures of studies in README.md and docs/, from the JSON in docs/ and the code
# make docs       the site of docs/ in build/docs, which needs no server; python -m http.server --directory build/docs for its search;
#                 REPO_URL=https://… links it to the repository
# make bench      speed and memory relative to reference implementations: as docs/performance.md has them (about twenty minutes)
# make gpu-check  tests and speed on a GPU, with .venv if it is there, else with PYTHON: runs/gpu_check.json, in eight minutes, then
#                 compiled models; GPU_TEST_DEVICE=cpu tries it without a GPU
# make setup      the environment .venv; the other targets run it if needed
# PYTHON=python3.12 make … selects the interpreter for .venv. TEST_WORKERS=1 is the number of test processes (auto: one per
# core, at most 8), TEST_THREADS=2 the number of threads of each (default: 1).

PYTHON ?= python3
PY := .venv/bin/python
INSTALLED := .venv/.installed
DEVELOPMENT := --constraint constraints.txt --editable ./vit_slim --editable '.[dev]'
GPU_PY = $(or $(wildcard $(PY)),$(PYTHON))
DEMO := --config_file configs/Synthetic/DeMo_Slim.yml OUTPUT_DIR runs/demo
SEPS := --config_file configs/SEPS/shapes.yml OUTPUT_DIR runs/demo-seps

TEST_WORKERS ?= auto
TEST := $(PY) -m pytest --numprocesses $(TEST_WORKERS) --maxprocesses 8

.PHONY: setup demo demo-seps study tables bench docs gpu-check test test-slow test-seeds test-hosts test-all mutants lint

setup: $(INSTALLED)

$(INSTALLED): setup.py vit_slim/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "error: $(PYTHON) is older than Python 3.10; choose another: make setup PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	# uv takes a fifth of pip's time; pip installs where uv cannot, as from an index that only pip's settings name.
	$(PY) -m pip install --quiet uv
	$(PY) -m uv pip install --quiet --python $(PY) $(DEVELOPMENT) || $(PY) -m pip install --quiet $(DEVELOPMENT)
	@touch $@

demo: setup
	$(PY) -m synthetic --root data/synthetic --overwrite
	$(PY) train_net.py --overwrite $(DEMO)
	$(PY) -m demo_sdtps.commands draw curves --overwrite --run runs/demo --output runs/demo/curves.png
	$(PY) -m demo_sdtps.commands draw ranks --overwrite --weight runs/demo/last.pth --output runs/demo/ranks.png
	$(PY) -m demo_sdtps.commands draw tokens --overwrite --weight runs/demo/last.pth --output runs/demo/tokens.png
	$(PY) -m demo_sdtps.commands report --overwrite --run runs/demo --html runs/demo/report.html
	$(PY) -m tools.tables --demo runs/demo

demo-seps: setup
	$(PY) -m synthetic captions --root data --overwrite
	$(PY) -m seps train --overwrite $(SEPS)
	$(PY) -m seps test --weight runs/demo-seps/last.pth

study: setup
	$(PY) -m synthetic --root data/synthetic --overwrite
	$(PY) -m synthetic --root data/fresh --seed 2026 --overwrite
	$(PY) -m synthetic --root data/tune --seed 7 --overwrite
	$(PY) -m synthetic --root data/pretrain --skip_identities 140 --identities 300 --test_identities 20 --overwrite
	$(PY) train_net.py --config_file configs/Synthetic/Baseline.yml DATASETS.ROOT_DIR ./data/pretrain INPUT.JOINT_AUGMENTATION True \
		SOLVER.BASE_LR 0.002 SOLVER.EVAL_PERIOD 100 OUTPUT_DIR runs/pretrain RESUME auto
	$(PY) -m demo_sdtps.commands convert runs/pretrain/last.pth runs/pretrain/backbone.pth --to backbone --overwrite
	code=0; for study in studies/rates*.yml studies/[!r]*.yml; do $(PY) -m studies.run $$study --json docs/results/$$(basename $$study .yml).json \
		|| code=$$?; test $$code -lt 2 || break; done; exit $$code

tables: setup
	$(PY) -m tools.tables

bench: setup
	$(PY) -m benchmarks.run --overwrite --json runs/benchmark.json

docs: setup
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo build/docs/index.html

GPU_TEST := PYTHONPATH=. $(GPU_PY) -m pytest -o addopts='' -W default -rs --durations=10
GPU_PARTS := slimming model fusion evaluation ranking reranking
# Without `setup`: a machine with a GPU may have no package index. Speed is measured whatever the tests say.
gpu-check:
	@$(GPU_PY) -c 'import fvcore, numpy, PIL, pytest, scipy, tensorboard, timm, torch, torchvision, tqdm, yacs, yaml' 2>/dev/null || { echo "error: \
	$(GPU_PY) needs torch, torchvision, numpy, scipy and Pillow, and of pure Python fvcore, pytest, tensorboard, timm, tqdm, yacs, PyYAML" >&2; exit 2; }
	code=0; $(GPU_TEST) -m "gpu and not slow" tests/project/test_gpu.py $$(grep -l load_case -r tests --include=test_*.py) || code=1; \
	$(GPU_PY) -m benchmarks.run --device $(if $(GPU_TEST_DEVICE),cpu --quick,cuda) $(GPU_PARTS) --overwrite --json runs/gpu_check.json || code=1; \
	$(GPU_TEST) -m "gpu and slow" tests/project/test_gpu.py || code=1; exit $$code

test: setup
	$(TEST) -m "not slow"

test-slow: setup
	$(TEST) -m slow $$(grep -rlE 'mark.slow|pytestmark' tests --include='test_*.py')

test-seeds: setup
	$(PY) -m tests.helpers.seeds --json runs/seeds.json

mutants: setup
	$(PY) -m tests.helpers.mutants $(ARGUMENTS)

test-hosts: setup
	$(PY) -m pytest -n 0 -s tests/plug_in/test_hosts.py

test-all: setup
	$(TEST) -m "$(TESTS)"

lint: setup
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy vit_slim demo_sdtps seps synthetic tools studies
