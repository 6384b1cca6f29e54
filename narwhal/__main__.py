"""`python -m narwhal`."""

import sys

from narwhal.cli import main

sys.exit(main())
