"""HTML pages of one file: templates with the styles and the script that they share, and nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

STYLES = ("shared/look.css", "report.css")
"""Style sheets of a report; the page of the service has the first one as well."""
SCRIPTS = ("shared/attention.js", "report.js")
"""Parts of the script of a report, in their order; the page of the service has the first one as well."""


def render_page(
    template: str, *, styles: tuple[str, ...] = STYLES, scripts: tuple[str, ...] = SCRIPTS, **values: object
) -> str:
    """Render a template with its styles, its script and its content security policy inlined.

    Args:
        template: file in `limner/templates`.
        styles: style sheets in `limner/templates`.
        scripts: parts of the script in `limner/templates`, which become one module.
        values: variables of the template.
    """
    pages = Environment(
        loader=PackageLoader("limner"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style, script = (Markup("\n".join(_source(pages, name) for name in names)) for names in (styles, scripts))
    return pages.get_template(template).render(style=style, script=script, policy=content_policy(script), **values)


def content_policy(script: str) -> str:
    """Return the content security policy of a page with one inline script: nothing else runs, nothing is loaded."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _source(pages: Environment, name: str) -> str:
    assert pages.loader is not None, "the environment has a loader"
    return pages.loader.get_source(pages, name)[0]
