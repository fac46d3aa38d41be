"""Reads uncompressed zip archives from a memory map. Nothing is unpacked, so no archive can expand in memory."""

import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from bertjax.interop.formats.reading import damaged, shown

_LOCAL_HEADER = struct.Struct("<4s22xHH")


class StoredZip:
    """The entries of an archive, by name.

    Attributes:
      names: the names of the entries. They are never used as file paths.
    """

    def __init__(self, path: Path, content: UInt8[np.ndarray, " N"]) -> None:
        """Reads the table of contents.

        Args:
          path: the path of the archive.
          content: the bytes of the archive.
        Raises:
          UserError: for a damaged archive, a compressed or encrypted entry, or entries that share bytes or a name.
        """
        self._path = path
        self._content = content
        try:
            with zipfile.ZipFile(path) as archive:
                entries = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error) as error:
            raise damaged(path, error, "a complete zip archive") from None
        self._entries = {entry.filename: entry for entry in entries}
        self.names = tuple(self._entries)
        if len(self.names) < len(entries):
            raise damaged(path, "two entries with the same name", "different names")
        for entry in entries:
            if (
                entry.compress_type != zipfile.ZIP_STORED
                or entry.compress_size != entry.file_size
                or entry.flag_bits & 1
            ):
                got = f"a compressed or encrypted entry {entry.filename}"
                raise damaged(path, got, "uncompressed entries, as torch.save writes them")
        total = sum(entry.file_size for entry in entries)
        if total > content.size:
            raise damaged(path, f"entries of {total} bytes that overlap", f"at most {content.size}, the file's size")

    def read(self, name: str) -> UInt8[np.ndarray, " N"]:
        """Returns the bytes of an entry in the memory map. Verifies its checksum.

        Raises:
          UserError: if the entry does not exist or is damaged.
        """
        where = f"{self._path}: {shown(name)}"
        if name not in self._entries:
            raise damaged(where, "no such entry", "an entry of the archive")
        entry = self._entries[name]
        header = self._slice(entry.header_offset, _LOCAL_HEADER.size, where)
        magic, name_size, extra_size = _LOCAL_HEADER.unpack(header.tobytes())
        start = entry.header_offset + _LOCAL_HEADER.size + name_size + extra_size
        content = self._slice(start, entry.file_size, where)
        if magic != b"PK\3\4" or zlib.crc32(content) != entry.CRC:
            raise damaged(where, "bytes with another checksum", "the checksum in the archive's table")
        return content

    def _slice(self, start: int, size: int, where: str) -> UInt8[np.ndarray, " N"]:
        if not 0 <= start <= start + size <= self._content.size:
            raise damaged(where, f"bytes {start} to {start + size}", f"at most {self._content.size}, the file's size")
        return self._content[start : start + size]
