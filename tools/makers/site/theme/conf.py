"""Sphinx reads this beside the sources that build.py has written."""

import html
from pathlib import Path

from docutils import nodes

project = "Rungs"
extensions = ["myst_parser", "sphinx_copybutton"]
myst_enable_extensions = ["html_image", "colon_fence"]
myst_heading_anchors = 6
exclude_patterns = ["doctrees"]
html_theme = "furo"
html_title = "Rungs"
html_favicon = "static/favicon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
# A shortcut of one letter would be in the way of those who speak to their machine: site.js has Ctrl+K.
html_theme_options = {"navigation_with_keys": True, "enable_search_shortcuts": False}
smartquotes = False  # it makes one dash of the two of an option: --no-reshard, copied, would fail
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
# What a cell shows is not to be copied.
copybutton_selector = "div.code pre, div.highlight-sh pre, blockquote div.highlight-python pre"
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


def give_headings_a_level(app, page, template, context, tree):
    """Sphinx calls the captions of the navigation headings, without saying of which level."""
    navigation = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = navigation.replace('role="heading"', 'role="heading" aria-level="2"')


def describe(tree) -> str:
    """The first sentences of a page, those under its title that say when and where left out."""
    if tree is None:
        return ""
    for node in tree.findall(nodes.paragraph):
        text = " ".join(node.astext().split())
        if isinstance(node.parent, nodes.section) and len(text) > 40:
            return text if len(text) < 200 else text[:197].rsplit(" ", 1)[0] + " ..."
    return ""


def give_a_card(app, page, template, context, tree):
    """What a search engine, and a chat in which somebody posts a link, show of a page.

    A picture needs an absolute address, which is the repository's.
    """
    repository = context.get("repository", "")
    title = html.unescape(context.get("title", "")) or project
    meta = context.get("meta") or {}
    title = meta.get("card", title)
    description = meta.get("description") or describe(tree)

    found = {"og:type": "article", "og:site_name": project, "og:title": title}
    if description:
        found["description"] = description
        found["og:description"] = description
    if repository:
        found["og:image"] = f"{repository}/raw/main/lessons/pictures/kill.png"
    found["twitter:card"] = "summary_large_image" if repository else "summary"

    tags = [context.get("metatags", "")]
    for name, text in found.items():
        key = "property" if name.startswith("og:") else "name"
        tags.append(f'<meta {key}="{name}" content="{html.escape(text)}">')
    context["metatags"] = "\n".join(tags)


def setup(app):
    app.connect("html-page-context", give_a_card)
    app.connect("html-page-context", give_headings_a_level, priority=900)  # after the theme
