"""``python -m relay.broker``: see relay.broker.main."""

import sys

from relay.broker.main import main

sys.exit(main())
