"""Write requirements.txt: every package of the running environment at its exact version.

    python book/tools/lock.py > requirements.txt

Run it with Python 3.11 in a fresh environment that holds what pyproject.toml asks for (``pip install '.[book,test]'``).
"""

from __future__ import annotations

import re
from importlib.metadata import distributions

# Not locked: the package itself, the installer, and what torch brings for one kind of GPU (torch pins those itself).
LEFT_OUT = re.compile(r"circuitlib|pip|triton|cuda-.*|nvidia-.*")

HEADER = """\
# What the book is built and tested with: Python 3.11, exact versions. `make book` installs these.
# The ranges are in pyproject.toml; tests/test_package.py checks that the two agree. Written by book/tools/lock.py.
"""


def locked() -> list[str]:
    """``name==version`` of each installed package, in order; a build tag such as ``+cpu`` is dropped."""
    lines = {re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower(): d.version.split("+")[0] for d in distributions()}
    return [f"{name}=={version}" for name, version in sorted(lines.items()) if not LEFT_OUT.fullmatch(name)]


if __name__ == "__main__":
    print(HEADER + "\n".join(locked()))
