"""What wandb recorded offline, read from its files."""
import json

BLOCK, FILE_HEADER, HEADER = 32768, 7, 7
FULL, LAST = 1, 4


def messages(path):
    """The messages in a .wandb file: LevelDB's log format, after a header."""
    content, position, parts = path.read_bytes(), FILE_HEADER, []
    while position + HEADER <= len(content):
        if BLOCK - position % BLOCK < HEADER:
            position += BLOCK - position % BLOCK
            continue
        length, kind = int.from_bytes(content[position + 4:position + 6], "little"), content[position + 6]
        parts.append(content[position + HEADER:position + HEADER + length])
        position += HEADER + length
        if kind in (FULL, LAST):
            yield b"".join(parts)
            parts = []


def records(folder):
    """The records of all runs in a folder `wandb`, in order of time."""
    from wandb.proto.wandb_internal_pb2 import Record

    for path in sorted(folder.glob("*run-*/run-*.wandb")):
        yield from map(Record.FromString, messages(path))


def points(folder):
    """(epoch, {name: value}) of each message with scalars."""
    for record in records(folder):
        if record.HasField("history"):
            values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            yield values.pop("_step"), {name: value for name, value in values.items() if not name.startswith("_")}
