"""python /tmp/e/apply.py NN...: put a fragment into README.md, lessons/README.md, notebooks/README.md of the cwd."""
import re, sys
from pathlib import Path
for number in sys.argv[1:]:
    text = Path(f"/tmp/e/fragments/{number}.md").read_text()
    row = next((l for l in text.splitlines() if l.startswith("| [")), None)
    line = next(l for l in text.splitlines() if re.match(r"- \[\d\d", l))
    section = re.search(r"^## \d\d.*?<!-- end of \S+ -->\n", text, re.S | re.M)
    readme = Path("README.md"); t = readme.read_text()
    if row and row not in t:
        rows = re.findall(r"^\| \[\d\d_.*$", t, re.M)
        before = [r for r in rows if r[3:5] < number][-1]
        t = t.replace(before + "\n", before + "\n" + row + "\n"); readme.write_text(t)
    page = Path("notebooks/README.md"); t = page.read_text()
    if line not in t:
        lines = re.findall(r"^- \[\d\d.*$", t, re.M)
        key = line[3:].split()[0]
        before = [l for l in lines if l[3:].split()[0] < key][-1]
        page.write_text(t.replace(before + "\n", before + "\n" + line + "\n"))
    if section:
        page = Path("lessons/README.md"); t = page.read_text()
        if f"<!-- end of {section[0].split('<!-- end of ')[1].split(' ')[0]} -->" not in t:
            ends = re.findall(r"<!-- end of (\d\d)\S+ -->", t)
            last = [e for e in ends if e < number][-1]
            if last == "06":
                anchor = "## Why the model has no kinks"
                t = t.replace(anchor, section[0] + "\n" + anchor)
            else:
                anchor = re.search(rf"<!-- end of {last}\S+ -->\n", t)[0]
                t = t.replace(anchor, anchor + "\n" + section[0])
            page.write_text(t)
