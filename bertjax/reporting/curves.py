"""`python -m bertjax.reporting.curves`, the former name of `python -m bertjax.tools.reporting.curves`."""

import sys

from bertjax.tools.reporting.curves import main

if __name__ == "__main__":
    main(sys.argv[1:])
