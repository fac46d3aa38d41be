"""Zip archives whose entries are stored as they are, in a memory map: nothing is unpacked, nothing can swell."""

import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from bertjax.interop.formats.reading import damaged, shown

_LOCAL_HEADER = struct.Struct("<4s22xHH")


class StoredZip:
    """The entries of an archive by name.

    Attributes:
      names: of the entries. No file is ever made or opened under one.
    """

    def __init__(self, path: Path, content: UInt8[np.ndarray, " N"]) -> None:
        """Reads the table of contents.

        Args:
          path: of the archive.
          content: its bytes.
        Raises:
          UserError: a damaged archive; an entry that is compressed or encrypted; entries that share bytes or a name.
        """
        self._path, self._content = path, content
        try:
            with zipfile.ZipFile(path) as archive:
                entries = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error) as error:
            raise damaged(path, error, "a complete zip archive") from None
        self._entries = {entry.filename: entry for entry in entries}
        self.names = tuple(self._entries)
        if len(self.names) < len(entries):
            raise damaged(path, "two entries of one name", "each name once")
        for entry in entries:
            if (
                entry.compress_type != zipfile.ZIP_STORED
                or entry.compress_size != entry.file_size
                or entry.flag_bits & 1
            ):
                got = f"a compressed or encrypted entry {entry.filename}"
                raise damaged(path, got, "stored ones, as torch.save writes them")
        total = sum(entry.file_size for entry in entries)
        if total > content.size:
            raise damaged(path, f"entries of {total} bytes that overlap", f"at most {content.size}, the file's size")

    def read(self, name: str) -> UInt8[np.ndarray, " N"]:
        """Returns the bytes of an entry, its checksum verified, in the map.

        Raises:
          UserError: no such entry, or one that is damaged.
        """
        where = f"{self._path}: {shown(name)}"
        if name not in self._entries:
            raise damaged(where, "no such entry", "one in the archive")
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
            raise damaged(where, f"bytes {start} to {start + size}", f"at most {self._content.size}")
        return self._content[start : start + size]
