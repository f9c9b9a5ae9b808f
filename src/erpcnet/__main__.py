"""`python -m erpcnet`: the command line."""

import sys

from erpcnet.cli import main

sys.exit(main())
