"""python /tmp/nb/build.py NAME [--no-run]: /tmp/nb/NAME.md -> notebooks/NAME.ipynb, executed, then drawn.
Cells in NAME.md begin with a line '=== markdown' or '=== code' (+ ' stack-trace' for a tag). First line may be '=== alone'."""
import sys, re, base64, subprocess, nbformat, os
from pathlib import Path
from nbformat.v4 import new_notebook, new_markdown_cell, new_code_cell
name = sys.argv[1]; root = Path(subprocess.run(["git","rev-parse","--show-toplevel"],capture_output=True,text=True,check=True).stdout.strip()); here = Path("/tmp/e/nb")
text = (here / f"{name}.md").read_text()
nb = new_notebook(); alone = False
parts = re.split(r"^=== (.*)\n", text, flags=re.M)[1:]
number = 0
for head, body in zip(parts[::2], parts[1::2]):
    kind, *tags = head.split()
    if kind == "alone": alone = True; continue
    number += 1
    cell = (new_markdown_cell if kind == "markdown" else new_code_cell)(body.strip("\n"))
    cell.id = f"cell-{number}"
    if tags: cell.metadata["tags"] = tags
    nb.cells.append(cell)
nb.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}, "language_info": {"name": "python"}}
if alone: nb.metadata["rungs"] = {"alone": True}
path = root / "notebooks" / f"{name}.ipynb"
nbformat.write(nb, path)
py = "/work/main/.venv/bin/python"
subprocess.run([py, "-m", "ruff", "check", "-q", "--fix", "--select", "I", path], cwd=root); subprocess.run([py, "-m", "ruff", "format", "-q", path], cwd=root)
lint = subprocess.run([py, "-m", "ruff", "check", path], capture_output=True, text=True, cwd=root)
if lint.returncode: print(lint.stdout[-3000:])
if "--no-run" in sys.argv: sys.exit()
import fcntl, time, itertools
slots = [open(f"/tmp/e/nb/slot{i}", "w") for i in range(2)]
for i in itertools.cycle(range(2)):
    try: fcntl.flock(slots[i], fcntl.LOCK_EX | fcntl.LOCK_NB); break
    except BlockingIOError: time.sleep(0.3)
code = subprocess.run([py, root / "tests/notebooks.py", name], cwd=root, stderr=None).returncode
slots[i].close()
refused = root / "out" / f"{name}.refused.ipynb"
shown = refused if code and refused.exists() else path
folder = here / "pictures" / name; folder.mkdir(parents=True, exist_ok=True)
for old in folder.glob("*"): old.unlink()
nb = nbformat.read(shown, 4)
with open(folder / "outputs.txt", "w") as f:
    for i, cell in enumerate(nb.cells, 1):
        f.write(f"######## cell {i} {cell.cell_type}\n")
        if cell.cell_type == "code": f.write(cell.source + "\n")
        for j, o in enumerate(cell.get("outputs", [])):
            d = o.get("data", {})
            if "image/png" in d:
                (folder / f"cell{i:02}-{j}.png").write_bytes(base64.b64decode(d["image/png"])); f.write(f">> picture cell{i:02}-{j}.png\n")
            elif "text" in o: f.write(">> " + o["text"].replace("\n", "\n>> ") + "\n")
            elif "text/plain" in d: f.write(">> " + d["text/plain"].replace("\n", "\n>> ") + "\n")
if refused.exists(): refused.rename(folder / "refused.ipynb"); shown = folder / "refused.ipynb"
subprocess.run([py, "-m", "nbconvert", "--to", "html", "--output-dir", folder, "--output", name, shown], capture_output=True)
print("outputs:", folder / "outputs.txt", "pictures:", *sorted(p.name for p in folder.glob("*.png")))
sys.exit(code)
