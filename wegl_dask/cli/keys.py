"""The keys of the job file as a part of a command's help."""

import textwrap
from itertools import groupby

import click

from wegl_dask.job_keys import REQUIRED, DocumentedKey
from wegl_dask.spec import documented_keys

_INDENT = " " * 6


class KeysCommand(click.Command):
    """A command whose help ends with the keys of the job file, table by table."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the keys after the options."""
        super().format_epilog(ctx, formatter)
        formatter.write("\nKeys of the job file; each may be set with --set TABLE.KEY=VALUE too.\n")
        keys = documented_keys()
        tables = dict.fromkeys(key.table for key in keys)
        for table, own in groupby(sorted(keys, key=lambda key: list(tables).index(key.table)), lambda key: key.table):
            formatter.write(f"\n{f'[{table}]' if table else 'At the top'}\n")
            for key in own:
                formatter.write(_entry(key, formatter.width))


def _entry(key: DocumentedKey, width: int) -> str:
    """Lay one key out: what it holds on its first line, what it means below."""
    default = key.default if key.default == REQUIRED else f"default: {key.default}"
    head = _filled(f"{key.leaf} = {key.kind}  ({default})", width, first="  ")
    return f"{head}\n{_filled(key.meaning, width, first=_INDENT)}\n"


def _filled(text: str, width: int, *, first: str) -> str:
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=_INDENT, break_on_hyphens=False)
