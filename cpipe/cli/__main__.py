"""``python -m cpipe.cli`` is the command ``cpipe``."""

import sys

from cpipe.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
