# The commands of the course. Each makes .venv if it is missing or out of date; that takes a minute or two
# the first time and nothing later. `make PYTHON=... GPTOSS_LAB_DEVICE=cpu|gpu run` overrides what is found.
# ARGS is handed to the command behind the target: make run ARGS="..."

.DEFAULT_GOAL := help
PYTHON3 ?= $(or $(shell command -v python3 || command -v python3.11 || command -v python3.12),python3)
BIN := .venv/bin
ARGS ?=
.PHONY: help venv run test lab record lint fix test-browser test-hub doctor lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 15

venv: ## make .venv, and nothing else
	@$(PYTHON3) scripts/make_venv.py

run: venv ## execute every lesson; pages and figures go to build/course/
	@$(BIN)/gptoss-lab run $(ARGS)

test: venv ## unit tests, then the notebook gate
	@$(BIN)/python -m pytest tests --ignore=tests/browser --ignore=tests/deploy -q -n 2 --dist loadfile $(ARGS)
	@$(BIN)/gptoss-lab gate

lab: venv ## open JupyterLab on the first lesson
	@JUPYTER_CONFIG_PATH="$(CURDIR)/deploy/jupyterlab$${JUPYTER_CONFIG_PATH:+:$$JUPYTER_CONFIG_PATH}" \
		$(BIN)/jupyter lab notebooks/00__start_here.ipynb $(ARGS)

record: venv ## execute the lessons and store their outputs
	@$(BIN)/gptoss-lab record $(ARGS)

lint: venv ## ruff, and the format and content of notebooks
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/gptoss-lab lint

fix: venv ## what lint can mend by itself
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/gptoss-lab fix

test-browser: venv ## every lesson in a real JupyterLab and Chromium
	@$(BIN)/python -m pytest tests/browser -q $(ARGS)

test-hub: venv ## a room with the real JupyterHub: log in, run a lesson as each, close it
	@$(BIN)/python deploy/jupyterhub/room.py install
	@$(BIN)/python -m pytest tests/deploy -q $(ARGS)

doctor: venv ## one line a check of this machine and this environment
	@$(BIN)/gptoss-lab doctor

lock: venv ## resolve the locks again; ARGS=--upgrade takes newer releases
	@$(BIN)/python scripts/make_locks.py $(ARGS)

clean: ## remove .venv and everything that is built
	rm -rf .venv .venv.removing build .pytest_cache .ruff_cache .hypothesis *.egg-info
	find gptoss_lab scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +
