"""HTML pages of one file from templates."""

from __future__ import annotations

import base64
import hashlib
import re

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, TemplateNotFound
from markupsafe import Markup

from limner.errors import RunError

STYLES = ("look.css", "report.css")
"""Style sheets of a report; the page of the service uses the first style sheet as well."""
SCRIPTS = ("attention.js", "report.js")
"""Parts of the script of a report, in their order; the page of the service uses the first part as well."""


def render_page(
    template: str, *, styles: tuple[str, ...] = STYLES, scripts: tuple[str, ...] = SCRIPTS, **values: object
) -> str:
    """Render a template with its styles, its script and its content security policy inlined.

    The policy allows the inline script alone: nothing else runs, nothing is loaded.
    """
    loader = ChoiceLoader([PackageLoader(__package__), PackageLoader("limner.plots", "web")])
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    try:
        style, script = (
            Markup("\n".join(loader.get_source(pages, name)[0] for name in names)) for names in (styles, scripts)
        )
        page = pages.get_template(template)
    except TemplateNotFound as error:
        raise RunError(f"{error.name}: missing in the package; install Limner again") from None
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return page.render(style=style, script=script, policy=policy, **values)


def without_folders(text: str) -> str:
    """Replace absolute paths by their last part, because the folder names of a machine are private."""
    return re.sub(r"(?<![\w.~])/(?:[^/\s]+/)+", "", text)
