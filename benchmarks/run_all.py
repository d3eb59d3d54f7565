"""All benchmarks, one after the other; what `make bench` runs."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = (
    "engine.py",
    "kill.py",
    "cost.py",
    "interview_judging.py",
    "local_engine.py",
    "play.py",
    "memory.py",
    "fuzz_cards.py",
    "router.py",
    "cast_train.py",
    "cast_decode.py",
    "cast_switch.py",
    "cast_add.py",
    "serve.py",
    "gpu_cast.py",  # says so where there is no GPU
)


def main() -> None:
    print(f"# {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {platform.machine()}, {os.cpu_count()} cores")
    print(f"load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}", flush=True)
    failed = []
    for script in SCRIPTS:
        print(f"\n# {script}\n", flush=True)
        if subprocess.run([sys.executable, HERE / script], check=False).returncode:
            failed.append(script)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
