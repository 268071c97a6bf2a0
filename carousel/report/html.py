"""What all reports share: a page that needs nothing else, pictures inside, folded tables."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from html import escape
from pathlib import Path
from string import Template

__all__ = ["document", "figure", "mapping", "tile"]

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { --ink: #1f2933; --muted: #64707d; --line: #e4e7eb; --panel: #f7f9fb; --accent: #2f6db3; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 68rem; color: var(--ink);
  background: #fff; font: 16px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.6rem; }
h2 { margin: 2.5rem 0 .75rem; font-size: 1.15rem; }
p.sub { margin: .25rem 0 0; color: var(--muted); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem;
  margin-top: 1.5rem; }
.tile { padding: .8rem 1rem; background: var(--panel); border-radius: .5rem; }
.tile b { display: block; font-size: 1.45rem; font-variant-numeric: tabular-nums; }
.tile span { color: var(--muted); font-size: .85rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(28rem, 1fr)); gap: 1rem; }
@media (max-width: 32rem) { .figures { grid-template-columns: 1fr; } }
figure { margin: 0; }
figure img { width: 100%; height: auto; border: 1px solid var(--line); border-radius: .5rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: left; border-bottom: 1px solid var(--line); }
table.matrix th, table.matrix td { text-align: right; border: 0; padding: .25rem .5rem; }
table.matrix td.ahead { color: var(--muted); }
td.number { text-align: right; font-weight: 600; white-space: nowrap; }
td.remark { color: var(--muted); }
details { margin-top: 1rem; }
summary { cursor: pointer; color: var(--accent); }
code { font-size: .9em; overflow-wrap: anywhere; }
</style>
</head>
<body>
<h1>$heading</h1>
<p class="sub">$subtitle</p>
$body
</body>
</html>
""")


def document(heading: str, subtitle: str, body: str) -> str:
    """A whole page.

    Args:
        heading: plain text; the title of the window, too.
        subtitle: plain text.
        body: HTML.
    """
    return _PAGE.substitute(
        title=escape(f"{heading} · carousel"),
        heading=escape(heading),
        subtitle=escape(subtitle),
        body=body,
    )


def tile(value: str, label: str) -> str:
    """A figure to see at first glance."""
    return f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>'


def figure(caption: str, path: Path) -> str:
    """A PNG file as part of the page."""
    data = b64encode(path.read_bytes()).decode("ascii")
    return f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{data}"></figure>'


def mapping(title: str, values: Mapping[str, object]) -> str:
    """Names and values, folded away; nothing when there are none."""
    if not values:
        return ""
    cells = "".join(
        f"<tr><td>{escape(key)}</td><td><code>{escape(_value_text(value))}</code></td></tr>"
        for key, value in _flat(values)
    )
    return f"<details><summary>{escape(title)}</summary><table>{cells}</table></details>"


def _flat(values: Mapping[str, object]) -> list[tuple[str, object]]:
    """One row a value; those of a mapping inside follow its name."""
    rows: list[tuple[str, object]] = []
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            rows += [(f"{key}: {name}", inner) for name, inner in _flat(value)]
        else:
            rows.append((str(key), value))
    return rows


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(str(part) for part in value) or "-"
    return "-" if value is None or value == {} else str(value)
