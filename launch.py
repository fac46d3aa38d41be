"""The command line of a clone. An installed package has the command `bertjax`."""

from bertjax.launch import run

if __name__ == "__main__":
    run()
