"""Hostile configurations and command lines: one sentence, exit code 2, nothing written.

The mistakes of every day are in tests/test_config_errors.py.
"""
from hostile import Case, run_case, table

FILE = ("--config_file", "{folder}/run.yml")
DEEP = 5000


def text(content):
    """Make the configuration file with this text ({folder} filled in)."""
    return lambda place: (place.folder / "run.yml").write_text(content.replace("{folder}", str(place.folder)))


def data(content):
    return lambda place: (place.folder / "run.yml").write_bytes(content)


def nothing(place):
    """Nothing is made: the words are enough."""


def lines_of_aliases(count):
    """Each holds the one before ten times: 10^count values in a few lines."""
    return "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, count))


FILES = [
    ("that is a dead link", lambda place: (place.folder / "run.yml").symlink_to("nowhere"), ["No such file"]),
    ("that is a link to itself", lambda place: (place.folder / "run.yml").symlink_to("run.yml"), ["cannot be read"]),
    ("of zeros", data(bytes(1000)), ["not valid YAML"]),
    ("of another syntax", text("[MODEL]\nHEAD = 4\n"), ["run.yml"]),
    ("with two documents", text("MODEL: {HEAD: 4}\n---\nMODEL: {HEAD: 2}\n"), ["not valid YAML"]),
    ("with a section twice", text("MODEL:\n  HEAD: 4\nMODEL:\n  HDM: True\n"), ["MODEL", "twice", "line 3"]),
    ("with a key twice", text("MODEL:\n  HEAD: 4\n  HEAD: 2\n"), ["HEAD", "twice", "line 3"]),
    ("that unfolds to 10^9 values", text(lines_of_aliases(9)), ["aliases"]),
    ("of sections within sections", text("{A: " * DEEP + "1" + "}" * DEEP), ["a value that YAML cannot read", "recursion"]),
    ("of lists within lists", text("[" * DEEP + "]" * DEEP), ["a value that YAML cannot read"]),
    ("of megabytes", text("# comment\n" * 200_000), ["larger than"]),
    ("with a date that is none", text("OUTPUT_DIR: 2026-13-45\n"), ["run.yml", "month"]),
    ("with a number of 5000 digits", text(f"SOLVER: {{SEED: {'9' * 5000}}}\n"), ["run.yml"]),
    ("with a hexadecimal number of 5000 digits", text(f"SOLVER: {{SEED: 0x{'f' * 5000}}}\n"), ["SOLVER.SEED", "too large"]),
    ("with such a number for a key", text(f"? 0x{'f' * 5000}\n: 1\n"), ["Unknown key", "thousands of digits"]),
    ("with bytes for a text", text("OUTPUT_DIR: !!binary aGVsbG8=\n"), ["OUTPUT_DIR", "a text"]),
    ("with a set for a number", text("SOLVER: {SEED: !!set {1, 2}}\n"), ["SOLVER.SEED", "a whole number"]),
    ("with a zero byte in a name", text('DATASETS: {ROOT_DIR: "a\\0b"}\n'), ["DATASETS.ROOT_DIR", "invalid in file names"]),
    ("with half a character in a name", text('OUTPUT_DIR: "\\ud800"\n'), ["OUTPUT_DIR", "invalid in file names"]),
    ("with an unknown key of control characters", text('"\\e[31mMODEL\\r\\n": 1\n'), ["Unknown key", "\\x1b[31m"]),
    ("with an unknown key without end", text(f"? {'M' * 5000}\n: 1\n"), ["Unknown key", "MMM…"]),
    ("that calls a function", text("!!python/object/apply:os.mkdir ['{folder}/executed']\n"), ["not valid YAML", "python"]),
    ("that makes an object", text("MODEL: !!python/object/new:os.mkdir ['{folder}/executed']\n"), ["not valid YAML", "python"]),
    ("that imports a module", text("MODEL: !!python/module:antigravity\n"), ["not valid YAML", "python"]),
    ("for another command", text("MODEL:\n  TEXT_TOWER: bert\n"), ["Unknown key 'MODEL.TEXT_TOWER'"]),
]
WORDS = [
    ("no configuration", ["--config_file"], ["--config_file", "expected"]),
    ("a flag that nobody knows", ["--wieght", "x"], ["--wieght"]),
    ("an empty key", ["", "1"], ["Unknown key ''"]),
    ("a value of signs", ["SOLVER.SEED", "~" * 10_000 + "1"], ["SOLVER.SEED", "…"]),
    ("a value of brackets", ["INPUT.SIZE_TRAIN", "[" * 10_000], ["INPUT.SIZE_TRAIN", "…"]),
    ("a value of 5000 hexadecimal digits", ["SOLVER.SEED", "0x" + "f" * 5000], ["SOLVER.SEED", "too large"]),
    ("a mean of 400 digits", ["INPUT.PIXEL_MEAN", f"[0, 0, 1{'0' * 400}]"], ["INPUT.PIXEL_MEAN", "three numbers"]),
    ("a program for a value", ["SOLVER.SEED", "__import__('os').mkdir('executed')"], ["SOLVER.SEED", "a whole number"]),
    ("more epochs than there are numbers", ["SOLVER.MAX_EPOCHS", "1" + "0" * 30], ["SOLVER.MAX_EPOCHS", "too large"]),
    ("a hundred thousand processes", ["DATALOADER.NUM_WORKERS", "100000"], ["DATALOADER.NUM_WORKERS", "at most 256"]),
    ("images of a gigapixel", ["INPUT.SIZE_TRAIN", "[32000,32000]"], ["INPUT.SIZE_TRAIN", "at most 4096"]),
    ("a folder's name that is too long", ["DATASETS.ROOT_DIR", "a" * 300], ["a" * 100, "File name too long"]),
    ("an output's name that is too long", ["OUTPUT_DIR", "a" * 300], ["a" * 100, "File name too long"]),
    ("an output below a file", ["OUTPUT_DIR", "/dev/null/run"], ["/dev/null", "cannot be written"]),
    ("a data set that leads elsewhere", ["DATASETS.NAMES", "../RGBNT201"], ["DATASETS.NAMES", "'RGBNT201'"]),
    ("a device that is none", ["MODEL.DEVICE", "cuda:0; rm -rf /"], ["MODEL.DEVICE"]),
]

CASES = [*(Case(f"a file {name}", "train", make, FILE, tuple(says)) for name, make, says in FILES),
         *(Case(name, "train", nothing, tuple(words), tuple(says)) for name, words, says in WORDS)]


@table(CASES)
def test_a_hostile_configuration_is_reported_in_one_sentence(case, place, command):
    run_case(case, place, command)
    assert not list(place.folder.rglob("executed"))
