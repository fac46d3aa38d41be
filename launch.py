"""The command line of a clone. An installed package has the command `bertjax`."""

import sys

try:
    from bertjax.launch import run
except ValueError as error:  # a UserError: the symbolic links are missing
    sys.exit(f"error: {error}")

if __name__ == "__main__":
    run()
