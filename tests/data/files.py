"""Files in the folder of a test, which is the current folder of all data tests."""

import gzip
from pathlib import Path


def write(name: str, content: str | bytes) -> Path:
    """Writes a file, which is compressed if its name ends with .gz."""
    path, data = Path(name), content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
