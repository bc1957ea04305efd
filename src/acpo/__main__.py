"""`python -m acpo` is the `acpo` command."""

import sys

from acpo.cli import main

sys.exit(main())
