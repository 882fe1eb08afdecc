"""JSON files that people write: read, checked against types, every fault told with its exact place.

`json` and msgspec both stop at the first error and lose what matters to whoever wrote the file: duplicate keys, the
place of a number that no field can hold, the path of a key. Profiles and plans are both read through here, so the same
mistake has the same name in both.
"""

from __future__ import annotations

from cpipe.jsontext.build import Builder
from cpipe.jsontext.envelope import Format, check_envelope
from cpipe.jsontext.reading import BadNumber, JsonObject, parse_json, read_bytes, shown
from cpipe.jsontext.scan import MAX_DEPTH, item, member, scan

__all__ = [
    "MAX_DEPTH",
    "BadNumber",
    "Builder",
    "Format",
    "JsonObject",
    "check_envelope",
    "item",
    "member",
    "parse_json",
    "read_bytes",
    "scan",
    "shown",
]
