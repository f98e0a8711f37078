"""``python -m tidemill`` is the ``tidemill`` command."""

from tidemill.cli.main import main

main()
