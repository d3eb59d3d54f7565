"""What all tests share: the public data beside the checkout, and how many tests went without."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# A slow machine is not a failing test.
settings.register_profile("personae", deadline=None)
settings.load_profile("personae")

ROOT = Path(__file__).resolve().parent.parent
ABSENT = "shared data absent:"


@pytest.fixture(scope="session")
def shared_data() -> Callable[..., Path]:
    """`shared_data("personagym", ...)`: a path in the public data; the test skips without it.

    The data lie in `PERSONAE_DATA`, by default `../shared/data` beside the repository.
    """
    base = Path(os.environ.get("PERSONAE_DATA") or ROOT.parent / "shared" / "data")

    def path(*parts: str) -> Path:
        wanted = base.joinpath(*parts)
        if not wanted.exists():
            pytest.skip(f"{ABSENT} {wanted} (set PERSONAE_DATA)")
        return wanted

    return path


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model of two layers with random weights, as a Hugging Face directory."""
    from tests.cast.conftest import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("tiny-base"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests the absent data cost, also when it is none."""
    skipped = sum(
        isinstance(report.longrepr, tuple) and ABSENT in report.longrepr[2]
        for report in terminalreporter.stats.get("skipped", [])
    )
    terminalreporter.write_line(f"{skipped} tests skipped because the shared data is absent")
