"""Object stores as SRC and DEST of ``paceline data convert``: copying from and to this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from paceline.cli.base.progress import Progress


@dataclass(frozen=True, kw_only=True)
class LocalPaths:
    """The local paths of the sources and of the result of a conversion."""

    paths: tuple[Path, ...]
    shown_dest: str  # DEST without secrets, for messages
    url: str | None  # where the result is sent; None: it stays on this machine

    @property
    def is_complete(self) -> bool:
        """Whether this machine has the complete result of an earlier command.

        This is so if that command could not upload the result.
        """
        from paceline.data.remote.copies import is_complete

        return self.url is not None and is_complete(self.paths[-1])

    def send(self) -> None:
        """Copy the result to the object store, if DEST is in one."""
        from paceline.data.remote.copies import send

        if self.url is not None:
            with Progress("files") as progress:
                send(self.paths[-1], self.url, {}, progress)


@contextmanager
def local_paths(given: Sequence[str], options: Mapping[str, Any]) -> Iterator[LocalPaths]:
    """Yield local paths for a conversion.

    Sources in an object store are copied to this machine. If DEST is in an object store, a local folder for the result
    is chosen.

    Args:
        given: SRC and DEST, or DEST alone.
        options: The options of the command.
    """
    from paceline.data.format.folders import is_url
    from paceline.data.remote.copies import check_empty, fetched, is_complete, staging_folder
    from paceline.data.remote.secrets import shown_url

    dest = given[-1]
    url = dest if is_url(dest) else None
    folder = Path(dest)
    if url is not None:
        folder = staging_folder(url, _conversion(given[:-1], options))
        folder.parent.mkdir(parents=True, exist_ok=True)
        check_empty(url, {}, partly_sent=is_complete(folder))
        if is_complete(folder):
            click.echo(
                "paceline: an earlier command has converted this source and could not send the result, which is sent "
                f"now; if the source has changed since, stop this command and remove {folder}",
                err=True,
            )
    with ExitStack() as stack:
        sources = []
        for one in given[:-1]:
            if is_url(one):
                with Progress("files") as progress:
                    sources.append(stack.enter_context(fetched(one, {}, progress)))
            else:
                sources.append(Path(one))
        yield LocalPaths(paths=(*sources, folder), shown_dest=shown_url(dest) if url else dest, url=url)


def _conversion(sources: Sequence[str], options: Mapping[str, Any]) -> str:
    """Return a text that identifies a conversion: its sources and all options that can change a sample."""
    from paceline.data.format.folders import is_url

    paths = [one if is_url(one) else str(Path(one).resolve()) for one in sources]
    return repr((paths, sorted((name, str(value)) for name, value in options.items() if name != "processes")))
