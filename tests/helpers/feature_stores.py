"""Files that are damaged."""


def damage(path, draws, zeroes):
    """Flip a bit, or set a block of 4 KiB to zero, at a random place of a file, which changes it."""
    before = path.read_bytes()
    content = bytearray(before)
    while content == before:
        at = int(draws.integers(len(content)))
        if zeroes:
            content[at : at + 4096] = bytes(len(content[at : at + 4096]))
        else:
            content[at] ^= 1 << int(draws.integers(8))
    path.write_bytes(content)
    return before
