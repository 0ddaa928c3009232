"""Is everything installed, and would SGLang load this package?"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.specifiers import SpecifierSet

from sglang_dspark.doctor.facts import Installation, Probed
from sglang_dspark.doctor.finding import Finding, ok, problem, warning

PLUGIN = "sglang_dspark"  # the name of both entry points
ENTRY_POINTS = {
    "plugin": "sglang_dspark.plugin:register",
    "platform": "sglang_dspark.plugin:activate_platform",
}
LEAST_PYTHON = (3, 11)


def check_python(found: Installation) -> Finding:
    version = ".".join(map(str, found.python))
    if found.python[:2] < LEAST_PYTHON:
        return problem("Python", version, "use Python 3.11 or newer")
    return ok("Python", version)


def check_packages(found: Installation) -> Iterator[Finding]:
    installed = {name: v for name, v in found.versions.items() if v is not None}
    yield ok("packages", ", ".join(f"{name} {v}" for name, v in installed.items()))
    pinned = found.tested_sglang[-1]
    if (sglang := installed.get("sglang")) is None:
        yield problem("packages", "sglang is not installed", f"pip install sglang=={pinned}")
    elif sglang not in found.tested_sglang:
        yield problem(
            "packages",
            f"sglang {sglang}: this package was tested with {', '.join(found.tested_sglang)} only",
            f"pip install sglang=={pinned}",
        )
    for name, wanted in found.wanted.items():
        version = installed.get(name)
        if version is None:
            yield problem("packages", f"{name} is not installed", f'pip install "{name}{wanted}"')
        elif not SpecifierSet(wanted).contains(version, prereleases=True):
            yield warning(
                "packages",
                f"{name} {version} is installed, SGLang asks for {wanted}",
                f'pip install "{name}{wanted}"',
            )


def check_plugin(found: Installation, probed: Probed) -> list[Finding]:
    """Entry points, and whether SGLang's own variables let them through."""
    wrong = [*_not_registered(probed), *_left_out(found)]
    return wrong or [ok("plugin", "registered as a plugin and as a platform")]


def _not_registered(probed: Probed) -> Iterator[Finding]:
    missing = [kind for kind, ours in ENTRY_POINTS.items() if probed.entry_points[kind] != ours]
    if missing:
        yield warning(
            "plugin",
            f"not registered as a {' nor as a '.join(missing)} of SGLang, which will not find it",
            "install this package (pip install .), being on PYTHONPATH is not enough",
        )


def _left_out(found: Installation) -> Iterator[Finding]:
    chosen = found.environment.get("SGLANG_PLUGINS", "")
    if chosen and PLUGIN not in {name.strip() for name in chosen.split(",")}:
        yield warning(
            "plugin",
            f"SGLANG_PLUGINS={chosen} leaves this package out",
            f"add {PLUGIN} to SGLANG_PLUGINS, or unset it",
        )
    platform = found.environment.get("SGLANG_PLATFORM", "")
    if platform and platform != PLUGIN:
        yield warning(
            "plugin",
            f"SGLANG_PLATFORM={platform} leaves this package out",
            f"unset SGLANG_PLATFORM, or set it to {PLUGIN} on a machine without an accelerator",
        )
    if found.environment.get("SGLANG_DSPARK_DISABLE") == "1":
        yield warning(
            "plugin", "SGLANG_DSPARK_DISABLE=1 switches this package off", "unset the variable"
        )


def check_seam(probed: Probed) -> Iterator[Finding]:
    if not probed.mismatches:
        yield ok("seam", "every private name of SGLang that is used is there, as expected")
    for mismatch in probed.mismatches:
        yield problem("seam", mismatch, "install the SGLang version that this package was made for")
