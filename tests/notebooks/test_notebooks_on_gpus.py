"""Each notebook on a simulated GPU, which its processes share: what it does where there is a GPU runs."""

import os
import shutil

import pytest

import lessons
import notebooks
import pretending
from lessons import ROOT

pytestmark = [
    pytest.mark.skipif(bool(pretending.missing()), reason=pretending.missing()),
    pytest.mark.skipif(pretending.real() > 0, reason="has real GPUs"),
]


@pytest.mark.night
@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_on_a_gpu(path, tmp_path):
    for row in (*lessons.LESSONS, *lessons.NOTEBOOKS):
        if row.stem == path.stem and row.is_missing():
            pytest.skip(f"needs {row.needs.split()[-1]}: make tools installs it")
    out = ROOT / "out" / f"gpu-{os.getpid()}"
    more = pretending.environment(1, tmp_path, os.environ) | {"PYTHONPATH": str(pretending.WITNESS)}
    try:
        fresh = notebooks.execute(path, OUT=str(out.relative_to(ROOT)), OMP_NUM_THREADS="1", **more)
    finally:
        shutil.rmtree(out, ignore_errors=True)
    for cell in fresh.cells:
        is_the_point = "stack-trace" in cell.metadata.get("tags", [])
        for text in notebooks.texts(cell):
            assert "pretended CUDA" not in text and (is_the_point or "Traceback" not in text), text
    code = notebooks.sources(fresh, "code")
    if "torch" in code and "CUDA_VISIBLE_DEVICES" not in code:
        pretending.waits(1, tmp_path)
