"""The fingerprint of a run's data: order, names and contents of everything it reads. A run resumes with the same data only."""
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.files import file_stamp, is_settled, read_json, write_json
from demo_sdtps.config.printing import printable
from demo_sdtps.config.progress import progress
from demo_sdtps.engine.coordination import check_agreement, ending_together, first_on_machine
from demo_sdtps.engine.run.resume import Resumed
from demo_sdtps.engine.run.state import names_crc

Fingerprint = dict[str, str]
"""Part of the data, such as "query NI" → its entries "<digest> <name>" in their order, separated by zero bytes."""

Texts = Mapping[str, Sequence[tuple[str, str]]]
"""Part of the data → names and texts."""

SEPARATOR = "\0"  # no file name holds it


class RunData(NamedTuple):
    """The data of a run: their fingerprint, a line about it and warnings for the log."""

    fingerprint: Fingerprint
    report: str
    warnings: tuple[str, ...]


def check_data(cfg: CfgNode, resumed: Resumed | None, loader: DataLoader, files: Mapping[str, Sequence[str]],
               texts: Texts | None = None) -> RunData:
    """Hash the data of a run: the paths in `files` and the texts in `texts`, by part. `loader` is that of the training.

    Processes that see other data than each other end. Raises `UserError` where the data are not those that the resumed run was
    begun with.
    """
    started = time.perf_counter()
    with first_on_machine():
        now, hashed = fingerprint(cfg.DATASETS.ROOT_DIR, files, texts or {})
    check_agreement({f"the data '{part}'": f"{entries.count(SEPARATOR) + 1} entries with the digest {_digest(_bytes(entries))}"
                     for part, entries in now.items()}, "let them see the same files")
    count = len({path for paths in files.values() for path in paths})
    report = f"data: {hashed} files hashed, {count - hashed} from the cache, in {time.perf_counter() - started:.1f} s"
    with ending_together():
        return RunData(now, report, _compare(cfg, resumed, loader, now) if resumed else ())


def _compare(cfg: CfgNode, resumed: Resumed, loader: DataLoader, now: Fingerprint) -> tuple[str, ...]:
    """Warnings about the data of a resumed run. Raises `UserError` where they have changed."""
    before = resumed.state["data"]
    is_older = isinstance(before, int)  # written before contents were compared
    if is_older:
        changed = "" if before == names_crc(cfg, loader) else "training files were added, removed or renamed"
    else:
        changed = difference(before, now)
    if changed:
        raise UserError(f"The data in DATASETS.ROOT_DIR {cfg.DATASETS.ROOT_DIR} are not those that the run in {resumed.path} "
                        f"was begun with: {changed}; put back what it had, or start another run in another OUTPUT_DIR.")
    return (f"{resumed.path} is of an earlier version and knows the names of the training files alone: whether contents, query "
            "and gallery are those that the run was begun with cannot be compared",) if is_older else ()


def fingerprint(root: str, files: Mapping[str, Sequence[str]], texts: Texts) -> tuple[Fingerprint, int]:
    """The fingerprint of `files`, whose names are relative to `root`, and `texts`; the number of files read for it.

    Raises `OSError` for a file that cannot be read.
    """
    folder = str(Path(root)) + os.sep
    names = {path: path.removeprefix(folder) for paths in files.values() for path in paths}
    digests, hashed = _file_digests(names, cache_file(root))
    entries = {part: [f"{digests[path]} {names[path]}" for path in paths] for part, paths in files.items()}
    entries |= {part: [f"{_digest(_bytes(text))} {name}" for name, text in named] for part, named in texts.items()}
    return {part: SEPARATOR.join(found) for part, found in entries.items()}, hashed


def difference(before: object, now: Fingerprint) -> str:
    """The first difference between two fingerprints, in a few words; "" where they are equal."""
    earlier = before if isinstance(before, Mapping) else {}
    part = next((part for part in {**now, **earlier} if earlier.get(part) != now.get(part)), None)
    if part is None:
        return ""
    old, new = (_entries(held.get(part)) for held in (earlier, now))
    was, entry = next(pair for pair in zip_longest(old, new, fillvalue=("", "")) if pair[0] != pair[1])
    if was[0] == entry[0]:
        what = f"{entry[0]} has other content"
    elif was[0] and was[0] not in dict(new):
        what = f"{was[0]} is missing"
    else:
        what = f"{entry[0]} is new" if entry[0] not in dict(old) else f"{entry[0]} is in another place"
    return printable(f"{what} ({part})")


def cache_file(root: str) -> Path:
    """The file with the digests of the files below `root`, in the folder DEMO_SDTPS_CACHE or the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if cache.startswith("~"):  # a user without a home
        cache = tempfile.gettempdir()
    folder = os.environ.get("DEMO_SDTPS_CACHE") or os.path.join(cache, "demo_sdtps")
    return Path(folder) / f"digests-{_digest(os.fsencode(os.path.realpath(root)))}.json"


def _file_digests(names: Mapping[str, str], cache: Path) -> tuple[dict[str, str], int]:
    """The digest of each path, cached by its name in `names`, and how many files were read for them.

    An entry of the cache is "<inode> <size> <times of change> <digest>", of the target where the file is a link.
    """
    started, content = time.time_ns(), read_json(cache)
    known = content if isinstance(content, dict) else {}
    entries = {path: str(known.get(name)) for path, name in names.items()}
    stamps = {path: f"{file_stamp(path)} " for path in names}
    unknown = [path for path, stamp in stamps.items() if not entries[path].startswith(stamp)]
    with ThreadPoolExecutor() as pool:
        found = progress(pool.map(_file_digest, unknown), "hashing the data", len(unknown), unit="file", delay=2)
        entries |= {path: stamps[path] + digest for path, digest in zip(unknown, found, strict=True)}
    settled = [path for path in unknown if is_settled(stamps[path], started)]
    if settled:
        with suppress(UserError):  # a folder that cannot be written costs time only
            write_json(cache, known | {names[path]: entries[path] for path in settled})
    return {path: entry.rpartition(" ")[2] for path, entry in entries.items()}, len(unknown)


def _file_digest(path: str) -> str:
    try:
        return _digest(Path(path).read_bytes())
    except OSError as error:
        error.filename = path  # which an error while reading, after the file was opened, lacks
        raise


def _entries(text: object) -> list[tuple[str, str]]:
    """Names and digests of a part."""
    parts = (entry.partition(" ") for entry in text.split(SEPARATOR)) if isinstance(text, str) else ()
    return [(name, digest) for digest, _, name in parts]


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()
