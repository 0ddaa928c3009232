"""The SGLang versions this seam was written and run against."""

from __future__ import annotations

from importlib.metadata import version

TESTED_SGLANG = ("0.5.23",)


class SeamMismatch(RuntimeError):
    """The installed SGLang is not the one this package knows; the text says what to install."""


def check_version() -> None:
    """Refuse an SGLang that was never tested with this package.

    Raises:
        SeamMismatch: the installed version is not in `TESTED_SGLANG`.
    """
    installed = version("sglang")
    if installed not in TESTED_SGLANG:
        raise SeamMismatch(
            f"sglang {installed} is installed, but this sglang-dspark was tested with "
            f"{', '.join(TESTED_SGLANG)}: run `pip install sglang=={TESTED_SGLANG[-1]}`, "
            "or set SGLANG_DSPARK_DISABLE=1 to serve without it"
        )
