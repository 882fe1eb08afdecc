"""What ``cpipe doctor`` looks at. Standard library alone until a part is tried, as any of them may be broken."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module, metadata, util
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cpipe.ir import Problem, Schedule

__all__ = ["LIBRARIES", "Library", "Part", "checkup", "library_part"]

_TIMEOUT_S = 300
_PROBLEM = b"""{"format": "cpipe.profile", "version": 1, "microbatches": 3,
 "devices": [{"id": "g0"}, {"id": "g1"}],
 "stages": [{"id": "s0", "device": "g0", "forward_ms": 2, "input_grad_ms": 2, "weight_grad_ms": 1},
            {"id": "s1", "device": "g1", "forward_ms": 3, "input_grad_ms": 2, "weight_grad_ms": 1}]}"""
_BEST_NS = 20_000_000
"""Shortest makespan of it [ns]: the first F, then the second stage without a pause."""


class Part(NamedTuple):
    """What was found of one thing; fields as in `cpipe.report.health.PartReport`."""

    name: str
    needed: str
    state: str
    version: str | None = None
    message: str = ""
    command: str | None = None


class Library(NamedTuple):
    """A library that cpipe uses.

    `name` is that of its distribution, `module` what is imported, `needed` what for, `extra` what brings it (None: it
    comes with cpipe), and `probe` a script that tries it in a process of its own, for ``--full``.
    """

    name: str
    module: str
    needed: str
    extra: str | None = None
    probe: str = ""


_TORCH = """
import torch, torch.distributed as dist
there = dist.is_available() and dist.is_gloo_available()
nccl = there and dist.is_nccl_available()
print(f"gloo {'yes' if there else 'no'}, nccl {'yes' if nccl else 'no'}, GPUs {torch.cuda.device_count()}")
raise SystemExit(not there and "torch.distributed has no gloo")
"""

LIBRARIES = (
    Library("msgspec", "msgspec", "core"),
    Library("typer", "typer", "core"),
    Library("rich", "rich", "core"),
    Library("pulp", "pulp", "core"),
    Library("highspy", "highspy", "core"),
    Library("ortools", "ortools", "solve --method cpsat", "cpsat", "import ortools.sat.python.cp_model"),
    Library("torch", "torch", "run and profile", "torch", _TORCH),
    Library("distributed", "distributed", "sweeps on a cluster", "dask", "import distributed"),
    Library("pillow", "PIL", "show --png", "png", "import PIL.ImageDraw, PIL.ImageFont"),
)


def checkup(*, full: bool = False) -> Iterator[Part]:
    """Yield what is found of each library and each back end, one after the other; nothing raises.

    Parameters
    ----------
    full
        Import the optional libraries too, each in a process of its own; torch takes seconds.
    """
    usable = {}
    for library in LIBRARIES:
        part = library_part(library, full=full)
        usable[library.name] = part.state in ("works", "present")
        yield part
    yield _tried("schedules and simulator", "core", _try_schedules)
    yield _tried("solve by HiGHS", "core", _try_highs)
    if usable["ortools"]:
        yield _tried("solve by CP-SAT", "solve --method cpsat", _try_cpsat)


def library_part(library: Library, *, full: bool = False) -> Part:
    """Return what is found of one library: its version is read without importing it."""
    wanted = _wanted(library)
    command = f"pip install 'cpipe[{library.extra}]'" if library.extra else f"pip install '{library.name}{wanted}'"
    found, version = Part(library.name, library.needed, "missing", None, "not installed", command), None
    try:
        version = metadata.version(library.name)
        there = util.find_spec(library.module) is not None
    except metadata.PackageNotFoundError:
        return found
    except Exception as error:
        return found._replace(state="broken", version=version, message=_story(error))
    if not there:
        return found._replace(state="broken", version=version, message=f"no module {library.module} to import")
    if not _fits(version, wanted):
        return found._replace(state="broken", version=version, message=f"expected {wanted}")
    state, message = "present", ""
    if library.extra is None and library.name not in ("pulp", "highspy"):  # those load in the solver's process
        state, message = _imported(library.module)
    elif full and library.probe:
        state, message = _probed(library.probe)
    return Part(library.name, library.needed, state, version, message, command if state == "broken" else None)


def _wanted(library: Library) -> str:
    """Return the versions that cpipe's own metadata asks for, such as ``>=3.3,<4``; empty when it is not known."""
    try:
        requirements = metadata.requires("cpipe") or []
    except Exception:
        return ""
    for requirement in requirements:
        match = re.match(r"([\w.-]+)\s*\(?([^;)]*)", requirement)
        if match and match[1].lower() == library.name:
            return ",".join(sorted((part.strip() for part in match[2].split(",")), reverse=True))
    return ""


def _fits(version: str, wanted: str) -> bool:
    found = _numbers(version)
    for clause in filter(None, wanted.split(",")):
        sign, limit = re.sub(r"[\w.]+$", "", clause).strip(), _numbers(clause)
        if (sign == ">=" and found < limit) or (sign == "<" and found >= limit):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    """Return the release of a version as numbers; what follows them (``rc1``, ``+cpu``) does not count."""
    match = re.search(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _imported(module: str) -> tuple[str, str]:
    try:
        import_module(module)
    except Exception as error:
        return "broken", _story(error)
    return "works", ""


def _probed(script: str) -> tuple[str, str]:
    """Run a script in a process of its own, where a crash is its own; return the state and what it said."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return "broken", _story(error)
    said = (done.stdout if done.returncode == 0 else done.stderr).decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(said) if line.strip()), "")
    if done.returncode == 0:
        return "works", last
    return "broken", last or f"ended with exit code {done.returncode}"


def _tried(name: str, needed: str, attempt: Callable[[], str]) -> Part:
    """Return how an attempt ended; whatever it raises is told, not raised."""
    try:
        return Part(name, needed, "works", None, attempt())
    except Exception as error:
        hint = "reinstall what is broken above, or report this if nothing is"
        return Part(name, needed, "broken", None, _story(error), hint)


def _story(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _try_schedules() -> str:
    from cpipe.compiler import SolveOptions, compile_profile
    from cpipe.plan import decode_plan, encode_plan, validate
    from cpipe.profile import normalize, parse_profile

    profile = parse_profile(_PROBLEM, "doctor")
    plan = compile_profile(profile, SolveOptions(method="1f1b")).plan
    faults = validate(decode_plan(encode_plan(plan), "doctor"), normalize(profile))
    if faults:
        raise RuntimeError(str(faults[0]))
    return f"a plan of {len(plan.ranks)} ranks validates"


def _try_highs() -> str:
    from cpipe.ir import Bound
    from cpipe.solve.milp import solve_milp

    problem, start = _tiny()
    outcome = solve_milp(problem, start, lower_bound=Bound(value_ns=0))
    if outcome.warnings or outcome.dual_bound_ns != _BEST_NS:
        raise RuntimeError(str(outcome.warnings[0] if outcome.warnings else f"proved {outcome.dual_bound_ns} ns"))
    return f"a tiny problem solved: {outcome.solver_status}"


def _try_cpsat() -> str:
    from cpipe.ir import Bound
    from cpipe.solve.cpsat import solve_cpsat

    problem, start = _tiny()
    outcome = solve_cpsat(problem, start, lower_bound=Bound(value_ns=0), work_limit=10.0)
    if outcome.broken or outcome.warnings or outcome.dual_bound_ns != _BEST_NS:
        found = outcome.warnings[0] if outcome.warnings else f"proved {outcome.dual_bound_ns} ns"
        raise RuntimeError(outcome.broken or str(found))
    return f"a tiny problem solved: {outcome.solver_status}"


def _tiny() -> tuple[Problem, Schedule]:
    from cpipe.profile import normalize, parse_profile
    from cpipe.schedules.registry import static_schedule

    problem = normalize(parse_profile(_PROBLEM, "doctor"))
    return problem, static_schedule("gpipe", problem)
