# The two commands are `make run` and `make test`. PYTHON=python uses the environment you are in.
PYTHON ?= .venv/bin/python
OUT ?= out
ARGUMENTS ?=
LESSONS ?= ladder
KILLS ?= 20
TIER ?= quick
TESTS = -n 5 --dist worksteal --durations 15

.PHONY: help setup run test test-room test-all costs tools check lab notebooks starters exercise gradescope selftest chaos diffs pictures bench scaling gpu site site-serve format

help: ## list what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12
	@echo
	@echo "PYTHON=python uses the environment you are in instead of .venv."

setup: $(if $(filter .venv/%,$(PYTHON)),.venv/ready) ## make .venv and install requirements.txt (run and test do it too)
	@true

.venv/ready: requirements.txt
	@command -v python3 >/dev/null || { echo "error: there is no python3 here: install Python 3.11 to 3.13" >&2; exit 1; }
	@python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
		|| { echo "error: python3 is $$(python3 -V 2>&1): Python 3.11 to 3.13 is needed" >&2; exit 1; }
	python3 -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

run: setup ## climb lessons 01 to 06 (LESSONS=all: to 17); ends with a table and out/ladder.svg
	@$(PYTHON) tools/ladder.py --out $(OUT) --lessons $(LESSONS) $(ARGUMENTS)

test: setup ## run the quick tests, in 7 minutes; the last lines say what was skipped and left out
	@$(PYTHON) -m pytest $(TESTS) --tier $(TIER) $(ARGUMENTS)

test-room: setup ## run all tests of a room of tests/rooms.toml, those of the night too: ROOM=judge
	@$(PYTHON) -m pytest $(TESTS) --room "$(ROOM)" $(ARGUMENTS)

test-all: setup ## run all tests, in over an hour: every night, and before a release
	@$(PYTHON) -m pytest $(TESTS) $(ARGUMENTS)

costs: setup ## run all tests, and keep what each costs in tests/costs.json (as root, on Linux)
	@mkdir -p $(OUT) && rm -f $(OUT)/costs.json
	@$(PYTHON) -m pytest $(TESTS) --costs $(OUT)/costs.json $(ARGUMENTS)
	@mv $(OUT)/costs.json tests/costs.json && $(PYTHON) tools/diffs.py

tools: setup ## install what some tests need beside Python, on Debian (SLURM, bubblewrap, Chromium, the site, frameworks)
	@sh tools/install.sh $(PYTHON)

# To a person at a terminal the report says it all: "make: *** [Makefile:63: check] Error 1" would say it worse.
check: setup ## check an exercise: EX=03, and SUBMISSION=solutions, HINTS=1, WATCH=1 (again at every save), WARM=no
	@PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(PYTHON) $(if $(filter no,$(WARM)),,tests/exercises/warm.py) \
		$(if $(WATCH),tests/exercises/watch.py,-m pytest tests/exercises) $(if $(EX),--only $(EX)) \
		$(if $(SUBMISSION),--submission $(SUBMISSION)) $(if $(HINTS),--hints) --out $(OUT) $(ARGUMENTS) || [ -t 2 ]

lab: setup ## open the notebooks in JupyterLab, on a port that is free
	@$(PYTHON) -m jupyterlab --ServerApp.port=0 --LabApp.default_url=/lab/tree/notebooks/01_single_gpu.ipynb $(ARGUMENTS)

notebooks: setup ## execute the notebooks and keep what they show (ARGUMENTS=03_ddp_spawn for one)
	@$(PYTHON) tools/notebooks.py $(ARGUMENTS)

starters: setup ## cut what students get in lessons/exercises out of the solutions
	@$(PYTHON) tools/starters.py

exercise: setup ## write a tiny exercise to begin from: ID=14 NAME=toy
	@$(PYTHON) tools/exercise.py "$(ID)" "$(NAME)"
	@$(PYTHON) tools/starters.py

gradescope: setup ## build out/gradescope.zip, an autograder for Gradescope
	@$(PYTHON) tests/exercises/bundle.py --out $(OUT)/gradescope.zip

selftest: setup ## grade the grader of the exercises: solutions, mutants, cheats; writes out/selftest.html
	@$(PYTHON) tests/exercises/grade.py --selftest --out $(OUT)/selftest.html $(ARGUMENTS)

scaling: setup ## does it pay to have more processes? ends with a table and out/scaling.svg
	@$(PYTHON) tools/bench/scaling.py --out $(OUT) $(ARGUMENTS)

bench: setup ## measure speed and start-up; ends with a table and out/bench.svg
	@$(PYTHON) tools/bench/bench.py --out $(OUT) $(ARGUMENTS)

gpu: setup ## check all on this machine's GPUs in 8 minutes (ARGUMENTS=--rehearse: on the CPU, in small)
	@$(PYTHON) tools/gpu --out $(OUT) $(ARGUMENTS)

chaos: setup ## kill lesson 06b in every way there is, KILLS times (20)
	@$(PYTHON) tools/chaos.py --kills $(KILLS) $(ARGUMENTS)

diffs: setup ## write commands, diffs and lists into lessons/pages and the READMEs
	@$(PYTHON) tools/diffs.py

pictures: setup ## draw the pictures of the READMEs anew
	@$(PYTHON) tools/pictures.py

site: .venv-site/ready ## build the site from what is here, into out/site (ADDRESS=https://github.com/... for its links)
	@$(if $(ADDRESS),ADDRESS=$(ADDRESS)) .venv-site/bin/python tools/site/build.py --out $(OUT) $(ARGUMENTS)

site-serve: site ## show it, on a port that is free
	@.venv-site/bin/python -m http.server 0 --bind 127.0.0.1 --directory $(OUT)/site

# Nothing in it is for readers, so that their environment has none of it.
.venv-site/ready: tools/site/requirements.txt tools/site/vendor.py
	python3 -m venv .venv-site
	.venv-site/bin/python -m pip install --quiet --disable-pip-version-check -r tools/site/requirements.txt
	.venv-site/bin/python tools/site/vendor.py .venv-site/pyodide
	@touch $@

format: setup ## format the code
	@$(PYTHON) -m ruff format . && $(PYTHON) -m ruff check --fix .
