"""The fleet file's keys for people: in the terminal, and as the documentation's page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from narwhal.config import KeyRow, describe

if TYPE_CHECKING:
    from rich.console import RenderableType

_PAGE = """\
# The fleet file

One YAML file tells the router all it needs: `narwhal serve --fleet fleet.yaml`. This much will do:

```yaml
model: my-model
slo: {ttft_s: 2.0, tpot_s: 0.05}
engines:
  - {id: p0, url: "http://10.0.0.1:8000", role: prefill}
  - {id: d0, url: "http://10.0.0.2:8000", role: decode}
```

- Durations are numbers of seconds and their names end in `_s`; sizes are bytes and end in `_bytes`.
- An engine takes what it does not set itself from the key that is given as the default.
- A file with `prefill` engines needs `decode` engines, and the other way round. Engines with role `both`
  serve whole requests; they need no others.
- Secrets stay out of the file: keys ending in `_env` name environment variables.
- Relative paths start at the file's folder.
- Unknown keys, wrong types, values out of range and contradictions are all reported at once, each with its
  line, what was seen and what is allowed; the exit status is then 2.
- With `admission: predictive`, prompts are turned away for lateness only once it is known how long they take:
  from what `narwhal profile` measured (`profiles.path`), or else from the first dozens of requests.

`narwhal check --fleet fleet.yaml` reads the file and the profiles it names, and asks each engine whether
it fits. This page is what `narwhal check --keys --markdown` prints.
"""


def _section(row: KeyRow) -> str:
    return row.path.rpartition(".")[0]


def markdown() -> str:
    """The page, ending in a newline."""
    parts = [_PAGE]
    for section, rows in groupby(describe(), _section):
        lines = [_line(("key", "default", "allowed", "meaning")), _line(["---"] * 4)]
        lines += [_line((f"`{row.path}`", _code(row.default), row.allowed, row.doc)) for row in rows]
        parts.append("\n".join([f"## {f'`{section}`' if section else 'At the top'}\n", *lines, ""]))
    return "\n".join(parts)


def _code(default: str) -> str:
    return default if default in ("required", "none") else f"`{default}`"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def terminal() -> Iterator[RenderableType]:
    """The keys for a rich console: a paragraph each, for no table of them fits 80 columns."""
    for row in describe():
        default = row.default if row.default in ("required", "none") else f"default: {row.default}"
        yield Text.assemble((row.path, "bold"), f"  ({'no default' if default == 'none' else default})")
        yield Padding(f"{row.doc.replace('`', '')}\nallowed: {row.allowed}", (0, 0, 1, 4))
