"""Makes bertjax/scoring/rouge_exceptions.txt from WordNet's lists of irregular forms, as in ROUGE-1.5.5.

    python -m tests.scoring.golden.make_rouge_exceptions ROUGE_HOME/data/WordNet-2.0-Exceptions

Keeps the words that ROUGE may look up and that Porter's algorithm stems differently. If a word has several forms, the
last one in the order of the files below is used, as in the database that comes with ROUGE-1.5.5. The notice at the top
of the file is kept.
"""

import argparse
import re
from collections import defaultdict
from pathlib import Path

from bertjax.scoring import rouge_stemmer

TABLE = Path(rouge_stemmer.__file__).with_name("rouge_exceptions.txt")
FILES = ("adj.exc", "adv.exc", "noun.exc", "verb.exc")
LOOKED_UP = re.compile("[a-z0-9]{4,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("lists", type=Path)
    forms = irregular_forms(parser.parse_args().lists)
    bases: dict[str, list[str]] = defaultdict(list)
    for word, base in sorted(forms.items()):
        if LOOKED_UP.fullmatch(word) and rouge_stemmer.porter(word) != base:
            bases[base].append(word)
    notice = [line for line in TABLE.read_text(encoding="ascii").splitlines() if line.startswith("#")]
    lines = [" ".join((base, *words)) for base, words in sorted(bases.items())]
    TABLE.write_text("\n".join(notice + lines) + "\n", encoding="ascii")


def irregular_forms(lists: Path) -> dict[str, str]:
    """Each irregular form with its base."""
    rows = [line.split() for name in FILES for line in (lists / name).read_text(encoding="ascii").splitlines()]
    return {row[0]: row[1] for row in rows}


if __name__ == "__main__":
    main()
