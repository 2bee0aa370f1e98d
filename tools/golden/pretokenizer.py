"""Writes tests/golden/pretokenizer.tsv: where the Hugging Face tokenizers library (0.23) cuts the plain
texts of tests/golden/tokenizer_smollm2.tsv by the expressions of each vocabulary.

  pip install tokenizers==0.23.3 && python3 tools/golden/pretokenizer.py > tests/golden/pretokenizer.tsv
"""

import pathlib
import re

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = ByteLevel(add_prefix_space=False, use_regex=True)
CUTTERS = {
    "gpt-2": BYTES,
    "smollm": Sequence([Digits(individual_digits=True), BYTES]),
    "qwen2": Split(Regex(QWEN2), behavior="isolated"),
}


def unescape(text: str) -> str:
    raw = re.sub(
        rb"\\(\\|x..)",
        lambda m: b"\\" if m[1] == b"\\" else bytes([int(m[1][1:], 16)]),
        text.encode(),
    )
    return raw.decode()


def main() -> None:
    print("# pre-tokenizer, length in bytes of each piece, text as in tokenizer_smollm2.tsv. By")
    print("# tools/golden/pretokenizer.py from tokenizers 0.23.3.")
    lines = (GOLDEN / "tokenizer_smollm2.tsv").read_text().splitlines()
    for kind, _, escaped in (line.split("\t") for line in lines if not line.startswith("#")):
        if kind != "plain":
            continue
        text = unescape(escaped)
        for name, cutter in CUTTERS.items():
            ends = [end for _, (_, end) in cutter.pre_tokenize_str(text)]
            starts = [0, *ends[:-1]]
            pieces = [text[a:b] for a, b in zip(starts, ends)]
            assert "".join(pieces) == text, (name, text, pieces)
            print(name, " ".join(str(len(p.encode())) for p in pieces), escaped, sep="\t")


if __name__ == "__main__":
    main()
