"""`python -m bertjax.reporting.page`, the former name of `python -m bertjax.tools.reporting.page`."""

import sys

from bertjax.tools.reporting.page import main

if __name__ == "__main__":
    main(sys.argv[1:])
