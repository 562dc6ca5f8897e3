"""The frame of a report: one page, no outside files, readable in light and dark."""

from __future__ import annotations

from string import Template

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { --ink: #1d2127; --faint: #7b828c; --line: #e3e6ea; --paper: #ffffff; --head: #f5f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --faint: #9aa2ad; --line: #343a43; --paper: #16191d; --head: #1f242a; }
  img { filter: invert(0.92) hue-rotate(180deg); }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1180px; margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.5rem; font-weight: 650; } h2 { font-size: 1.1rem; margin-top: 2.5rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
th, td { padding: 0.35rem 0.7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { font-weight: 600; } tbody th, thead th:first-child { text-align: left; } thead { background: var(--head); }
table.wide td:nth-child(-n+2) { text-align: left; }
td small { display: block; color: var(--faint); font-size: 0.78em; }
p, figcaption { color: var(--faint); font-size: 0.9rem; }
figure { margin: 2.5rem 0; } img { max-width: 100%; height: auto; }
</style>
</head>
<body>
<h1>$title</h1>
$body
</body>
</html>
""")
