"""Sphinx reads this beside the sources that build.py has written."""

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
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
copybutton_selector = "div.code pre, div.highlight-sh pre"  # what a cell shows is not to be copied
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


def give_headings_a_level(app, page, template, context, tree):
    """Sphinx calls the captions of the navigation headings, without saying of which level."""
    navigation = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = navigation.replace('role="heading"', 'role="heading" aria-level="2"')


def setup(app):
    app.connect("html-page-context", give_headings_a_level, priority=900)  # after the theme
