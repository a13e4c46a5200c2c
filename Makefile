# Start with `make run` and `make lab`. PYTHON=python uses your active environment instead of .venv.
PYTHON ?= .venv/bin/python
OUT ?= out
ARGUMENTS ?=
LESSONS ?= ladder
KILLS ?= 20
TIER ?= quick
TESTS = -q -n auto --dist worksteal --durations 15

.PHONY: help setup run test test-all tools newest debian check lab notebooks starters gradescope students selftest sweep chaos diffs carry pictures bench scaling gpu gpu-speed site site-serve format

help: # the targets, in groups
	@awk -F ':.*## ' '/^##@/ { print "\n" substr($$0, 5) } /^[a-z-]+:.*## / { printf "  %-12s%s\n", $$1, $$2 }' Makefile
	@echo
	@echo "PYTHON=python uses your active environment instead of .venv."

##@ to learn

setup: $(if $(filter .venv/%,$(PYTHON)),.venv/ready) ## create .venv from requirements.txt (the other targets do it too)
	@true

# An environment that was made by hand is kept, if its Python is one that requirements.txt is for.
.venv/ready: requirements.txt
	@sh tools/python.sh
	@.venv/bin/python -m pip --version >/dev/null 2>&1 || python3 -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

run: setup ## run lessons 01 to 06 (LESSONS=all: all lessons) and compare their curves: a table and out/run/ladder.svg
	@$(PYTHON) -m tools.run_lessons --out $(OUT)/run --lessons $(LESSONS) $(ARGUMENTS)

test: setup ## run the quick tests in about 5 minutes; the last lines say what was skipped
	@$(PYTHON) -m pytest $(TESTS) -m "$(TIER)" $(ARGUMENTS)

# To a person at a terminal the report says it all: "make: *** [Makefile:63: check] Error 1" would say it worse.
check: setup ## grade your exercises: EX=03 for one, HINTS=1, WATCH=1 (again at every save), SUBMISSION=folder
	@PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(PYTHON) $(if $(WATCH),tests/exercises/watch.py,-m pytest tests/exercises \
		--confcutdir tests/exercises -p no:cacheprovider $(if $(filter -v%,$(ARGUMENTS)),,-q)) $(if $(EX),--only $(EX)) \
		$(if $(SUBMISSION),--submission $(SUBMISSION)) $(if $(HINTS),--hints) --out $(OUT) $(ARGUMENTS) || [ -t 2 ]

# In WSL, the browser of Windows cannot open a file of Linux, only an address.
lab: setup ## open the notebooks in JupyterLab
	@$(PYTHON) -m jupyterlab --ServerApp.port=0 $(if $(WSL_DISTRO_NAME),--ServerApp.use_redirect_file=False) \
		--LabApp.default_url=/lab/tree/notebooks/01_single_gpu.ipynb $(ARGUMENTS)

gpu: setup ## test the lessons on your GPUs, with pytest; then ARGUMENTS=--notebooks
	@$(PYTHON) -m tools.makers.gpu.run_tests --out $(OUT) $(ARGUMENTS)

gpu-speed: setup ## measure how fast your GPUs train, and what limits them
	@$(PYTHON) -m tools.makers.gpu.measure --out $(OUT) $(ARGUMENTS)

bench: setup ## measure throughput and start-up time, beside our machine: tables and out/bench.svg
	@$(PYTHON) -m tools.makers.bench.bench --out $(OUT) $(ARGUMENTS)

scaling: setup ## measure the speedup of 1, 2 and 4 processes: a table and out/scaling.svg
	@$(PYTHON) -m tools.makers.bench.bench --only scaling --out $(OUT) $(ARGUMENTS)

chaos: setup ## kill a run of lesson 06b again and again: KILLS=20
	@$(PYTHON) -m tools.makers.chaos $(KILLS)

##@ to teach

# What holds a solution, or is made of one. `git archive` also leaves out what git does not know, and all history.
ANSWERS = solutions tests/exercises/*/mutants.toml tests/exercises/*/other_solution.py
# The grader's own tests need the answers, and hostile.toml teaches attacks.
OF_GRADER = tests/hostile.toml tests/test_grader.py tests/test_grading.py tests/test_tables.py tests/test_exercises.py
students: ## write the repository without its answers and history, for students: out/students.zip
	@mkdir -p $(OUT)
	@git archive -o $(OUT)/students.zip HEAD . $(patsubst %,':!%',$(ANSWERS) $(OF_GRADER))
	@echo "$(OUT)/students.zip: unpack it into a new repository, and push that one"

gradescope: setup ## build the autograder for Gradescope, out/gradescope.zip
	@$(PYTHON) tests/exercises/bundle.py --out $(OUT)/gradescope.zip

selftest: setup ## test the tests of the exercises with solutions and mutants: EX=03 for one
	@$(PYTHON) tests/exercises/mutants.py $(EX) $(ARGUMENTS)

##@ to maintain

test-all: setup ## run all tests, which takes over an hour
	@$(PYTHON) -m pytest $(TESTS) $(ARGUMENTS)

tools: setup ## install what some tests need on Debian (SLURM, bubblewrap, Chromium, frameworks)
	@sh tools/install_for_tests.sh $(PYTHON)

newest: ## run everything once on the newest torch, or on TORCH=2.14.1 TORCHVISION=0.29.1, before a release
	@sh tools/newest.sh

SUITE ?= sid
debian: ## run README's commands in a bare Debian, before a release: SUITE=trixie for Python 3.13
	@sh tools/readme_on_debian.sh $(SUITE)

notebooks: setup ## execute the notebooks and store their output (ARGUMENTS=03_ddp_spawn for one)
	@$(PYTHON) -m tools.notebooks $(ARGUMENTS)

sweep: setup ## look for seeds with which a check of an exercise refuses a right answer: EX=03, SEEDS=2000
	@$(PYTHON) tests/exercises/sweep.py $(EX) --seeds $(or $(SEEDS),20) $(ARGUMENTS)

starters: setup ## write the starters in lessons/exercises from the solutions
	@$(PYTHON) tests/exercises/starters.py

diffs: setup ## write commands, diffs and lists into pages, READMEs and notebooks
	@$(PYTHON) -m tools.diffs

carry: setup ## carry a change of a lesson into the scripts that grew from it: LESSON=03
	@$(PYTHON) -m tools.carry $(LESSON)

pictures: setup ## redraw the pictures of the READMEs
	@$(PYTHON) -m tools.makers.pictures

format: setup ## format the code
	@$(PYTHON) -m ruff format . && $(PYTHON) -m ruff check --fix .

site: .venv-site/ready ## build the website in out/site
	@$(if $(ADDRESS),ADDRESS=$(ADDRESS)) .venv-site/bin/python -m tools.makers.site.build --out $(OUT) $(ARGUMENTS)

# Nothing in it is for readers, so that their environment has none of it.
# Pyodide runs the planner and others in the reader's browser.
PYODIDE = 314.0.7
.venv-site/ready: tools/makers/site/requirements.txt tools/makers/site/pyodide.sha512
	python3 -m venv .venv-site
	.venv-site/bin/python -m pip install --quiet --disable-pip-version-check -r tools/makers/site/requirements.txt
	cd .venv-site && npm pack --silent pyodide@$(PYODIDE) && sha512sum --check --quiet ../tools/makers/site/pyodide.sha512
	mkdir -p .venv-site/pyodide
	cd .venv-site && tar -xzf pyodide-$(PYODIDE).tgz -C pyodide --strip-components 1 \
		$(addprefix package/,pyodide.mjs pyodide.asm.mjs pyodide.asm.wasm python_stdlib.zip pyodide-lock.json)
	@touch $@

site-serve: site ## build the website and serve it on a free port
	@.venv-site/bin/python -m http.server 0 --bind 127.0.0.1 --directory $(OUT)/site
