"""`make lab`, a notebook opened in a browser, "Run All Cells" pressed, and its last picture looked for."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from urllib.error import HTTPError
from urllib.request import urlopen

import nbformat
import pytest

from tests.helpers import browser
from tools.lessons import ROOT

STEM = "planning"  # the quickest


@pytest.fixture
def lab(tmp_path):
    """JupyterLab, started by `make lab` in a copy of the repository whose notebook has no outputs."""
    copy = tmp_path / "rungs"
    for name in ("lessons", "notebooks"):
        shutil.copytree(ROOT / name, copy / name)
    shutil.copy(ROOT / "Makefile", copy)
    path = copy / f"notebooks/{STEM}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for cell in [cell for cell in notebook.cells if cell.cell_type == "code"]:
        cell.outputs, cell.execution_count = [], None
    nbformat.write(notebook, path)
    home, runtime = tmp_path / "home", tmp_path / "runtime"
    home.mkdir()
    environment = os.environ | {"HOME": str(home), "JUPYTER_RUNTIME_DIR": str(runtime)}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
    environment.pop("OUT", None)
    words = ["make", "lab", f"PYTHON={sys.executable}", "ARGUMENTS=--no-browser --allow-root"]
    with open(tmp_path / "lab.log", "w") as log:
        streams = {"stdout": log, "stderr": log}
        process = subprocess.Popen(words, cwd=copy, env=environment, start_new_session=True, **streams)
    try:
        deadline = time.monotonic() + 60
        # It prints its address, and a moment later leaves the file.
        while "?token=" not in (tmp_path / "lab.log").read_text() or not [*runtime.glob("jpserver-*.json")]:
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "lab.log").read_text()
            time.sleep(0.1)
        yield json.loads(next(runtime.glob("jpserver-*.json")).read_text())
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=30)


def is_ready(lab):
    """Has the kernel answered, and is the page connected to it?"""
    try:
        with urlopen(f"{lab['url']}api/kernels?token={lab['token']}", timeout=10) as answer:
            kernels = json.load(answer)
    except HTTPError as error:
        if error.code != 500:
            raise
        return []  # a kernel that is being started has no last activity yet, which the server's list needs
    return [kernel for kernel in kernels if kernel["execution_state"] == "idle" and kernel["connections"]]


@pytest.mark.night
@pytest.mark.skipif(browser.CHROMIUM is None, reason="needs Chromium: make tools installs it")
def test_a_notebook_runs_in_jupyterlab_from_top_to_bottom(lab, chromium):
    stored = nbformat.read(ROOT / f"notebooks/{STEM}.ipynb", as_version=4)
    pictures = 0
    for cell in stored.cells:
        for output in cell.get("outputs", []):
            pictures += "image/png" in output.get("data", {})
    assert pictures >= 3
    page = browser.Page(chromium, f"{lab['url']}lab/tree/notebooks/{STEM}.ipynb?token={lab['token']}")
    try:
        page.until("document.querySelectorAll('.jp-Notebook .jp-Cell').length > 20", "the notebook")
        # The page calls a kernel idle that it has not reached yet, and drops what it is then asked to run.
        page.wait(lambda: is_ready(lab), "the kernel")
        seen = "document.querySelectorAll('.jp-OutputArea img').length"
        assert page.ask(seen) == 0
        page.click(".lm-MenuBar-itemLabel", "Run")
        page.click(".lm-Menu-itemLabel", "Run All Cells")
        code = sum(cell.cell_type == "code" for cell in stored.cells)
        prompts = "[...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map((p) => p.textContent)"
        page.until(f"{prompts}.includes('[{code}]:')", "the last cell", 180)
        errors = '[data-mime-type="application/vnd.jupyter.stderr"]'
        assert page.ask(f"document.querySelectorAll('{errors}').length") == 0
        assert page.ask(seen) == pictures
        last = "[...document.querySelectorAll('.jp-OutputArea img')].at(-1)"
        page.until(f"{last}.naturalWidth > 600", "the last picture")
    finally:
        page.close()
