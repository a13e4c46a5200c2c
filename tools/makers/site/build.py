"""Build the site: `make site`.

    make site
    make site ADDRESS=https://github.com/someone/rungs

You will see how many pages were built, in how many seconds, in out/site. Nothing is executed and nothing is
fetched. With ADDRESS, or the address in tools/lessons.toml, pages have a link to edit them and a picture
for their cards; notebooks have two more links, to open them in Colab and to download them. With --pages
only those are built, and links to others are only their text.
"""

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path, PurePosixPath

from tools import lessons
from tools.lessons import ROOT
from tools.makers.site import deck, home, to_markdown

HERE = Path(__file__).resolve().parent
PYODIDE = Path(sys.prefix) / "pyodide"  # where make site has it fetched
WIDGETS = tuple(sorted(path.stem for path in (HERE / "widgets").glob("*.py")))


def pages_of_the_site() -> tuple[PurePosixPath, ...]:
    """The pages of the repository that are pages of the site."""
    found = list(ROOT.glob("*.md"))
    for name in ("lessons", "notebooks", "solutions", "tools", "tests"):
        found += (ROOT / name).rglob("*.md")
    for row in lessons.NOTEBOOKS:
        found.append(row.path)

    pages = []
    for name in sorted(path.relative_to(ROOT).as_posix() for path in found):
        if "/." not in name:
            pages.append(PurePosixPath(name))
    return tuple(pages)


def address() -> str:
    """The repository's, if it is known: from the table of lessons, or instead of it from a variable."""
    return os.environ.get("ADDRESS", lessons.ADDRESS).rstrip("/")


def prepare(folder: Path, chosen: list[str]):
    """Write the sources of all pages, or of some."""
    pages = tuple(map(PurePosixPath, chosen)) or pages_of_the_site()
    book = to_markdown.Book(folder, pages, address(), is_whole=not chosen)
    for name in WIDGETS:
        book.widgets[name] = importlib.import_module(f"tools.makers.site.widgets.{name}")
    write_pages(book)
    book.write(to_markdown.HOME, home.home(book))
    book.write("syllabus.md", home.rendered(book, "syllabus"))
    for name in book.widgets:
        book.write(f"widgets/{name}.md", home.widget(book, name))
    write_linked(book)

    for name in ("conf.py", "scorer.js", "static/site.css", "static/site.js", "static/favicon.svg"):
        book.write(name, (HERE / "theme" / PurePosixPath(name).name).read_text())
    for path in (ROOT / "lessons/pictures").iterdir():
        book.write(path.relative_to(ROOT), path.read_bytes())
    for name in home.PICTURES:  # the builder does not look for pictures in HTML
        book.write(f"static/{name}", (ROOT / "lessons/pictures" / name).read_bytes())


def write_pages(book: to_markdown.Book):
    """Write the pages of the repository."""
    below = {home.page_of(lesson): home.below(book, lesson) for lesson in lessons.LESSONS}
    for page in book.pages:
        if page.suffix == ".ipynb":
            text = to_markdown.notebook(book, page)
        else:
            text = to_markdown.markdown(book, page) + "\n" + below.get(page, "")
        if not home.is_in_navigation(page):
            text = f"---\norphan: true\n---\n\n{text}"
        book.write(page.with_suffix(".md"), text)


def write_linked(book: to_markdown.Book):
    """Write the files and folders that some page links. The page of a folder links others in turn."""
    done = set()
    while left := sorted(book.linked - done):
        done.update(left)
        for path in left:
            if (ROOT / path).is_dir():
                book.write(path / "index.md", to_markdown.folder(book, path))
                continue
            page = to_markdown.exercise if to_markdown.is_exercise(path) else to_markdown.file
            book.write(path.with_name(path.name + ".md"), page(path))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out"), help="the site is in its folder site")
    parser.add_argument("--pages", nargs="*", default=[], help="pages of the repository (all)")
    arguments = parser.parse_args()
    start = time.monotonic()
    folder = arguments.out / "site-sources"
    site = arguments.out / "site"
    # A page that is not built again would keep the old navigation, and a warning would not come again.
    for old in (folder, site):
        shutil.rmtree(old, ignore_errors=True)
    try:
        prepare(folder, arguments.pages)
    except to_markdown.Broken as error:
        sys.exit(f"error: {error}")
    words = ["-m", "sphinx", "--quiet", "--fail-on-warning", "--jobs", "auto"]
    words += ["--doctree-dir", folder / "doctrees", "--html-define", f"repository={address()}"]
    words += ["--builder", "html", folder, site]
    if subprocess.run([sys.executable, *map(str, words)]).returncode:
        sys.exit("error: the site was not built: what is wrong is said above")
    (site / "slides.html").write_text(deck.deck(site))
    shutil.copytree(PYODIDE, site / "_static/pyodide")
    (site / ".nojekyll").touch()  # else GitHub leaves out what begins with an underscore
    count = len(list(folder.rglob("*.md")))
    print(f"{count} pages in {time.monotonic() - start:.0f} seconds: {site}/index.html")


if __name__ == "__main__":
    main()
