"""Where a device listens that is not this machine: an RPC tracker and a key, written as a URL."""

from __future__ import annotations

import dataclasses
from typing import Final
from urllib.parse import parse_qs, urlsplit

SCHEME: Final = "rpc"
FORM: Final = "rpc://HOST:PORT/KEY?device=NAME"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """The tracker at `host`:`port`, and the key under which servers of one kind of device register."""

    host: str
    port: int
    key: str

    def __str__(self) -> str:
        return f"{SCHEME}://{self.host}:{self.port}/{self.key}"


def read_address(text: str) -> tuple[Address, str]:
    """Read `rpc://HOST:PORT/KEY?device=NAME`; return the address and the name of the device file.

    Raises:
        ValueError: the text has another form; the message says what is missing.
    """
    parts = urlsplit(text)
    key = parts.path.strip("/")
    port = parts.port  # raises ValueError for what is no port
    options = parse_qs(parts.query)
    missing = [name for name, value in (("HOST", parts.hostname), ("PORT", port), ("/KEY", key)) if not value]
    missing += [] if options.get("device") else ["?device=NAME, the device file that describes it"]
    if missing:
        raise ValueError(f"it lacks {' and '.join(missing)}")
    if set(options) != {"device"} or len(options["device"]) > 1 or parts.fragment:
        raise ValueError("?device=NAME is all that may follow the key, once")
    return Address(host=str(parts.hostname), port=int(port or 0), key=key), options["device"][0]
