"""Startup code of every Python process below ``paceline run``; its folder is first on PYTHONPATH.

It starts ``paceline.inprocess.recorder.start`` (below ``paceline plan``: ``paceline.inprocess.first_step.capture``),
which waits for torch. Then it runs the ``sitecustomize`` module that it hides. This code must not raise, and must not
cost time in a process without torch.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _watch() -> None:
    run_dir, caught = os.environ.get("PACELINE_WATCH_DIR", ""), os.environ.get("PACELINE_CATCH_FILE")
    if not (run_dir or caught):
        return
    if os.environ.get("PACELINE_DISABLE", "0") not in ("", "0") or sys.version_info < (3, 11):
        return
    package = os.path.dirname(os.path.dirname(_HERE))
    _make_importable(package)
    if caught:
        from paceline.inprocess.first_step import capture

        capture.begin(caught)
        return
    from paceline.inprocess.recorder import start

    start.begin(run_dir)


def _make_importable(package: str) -> None:
    """Make ``import paceline`` load this package, without a change to sys.path."""
    import importlib.util

    if "paceline" in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(
        "paceline", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package at {package}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["paceline"] = module
    spec.loader.exec_module(module)


def _give_way() -> None:
    """Remove this folder from sys.path and run the hidden sitecustomize; raise ModuleNotFoundError if there is none."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("No module named 'sitecustomize'", name="sitecustomize")
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _watch()
except Exception as error:
    try:
        os.write(2, f"paceline: not watching this process ({type(error).__name__}: {error})\n".encode())
    except OSError:
        pass
_give_way()
