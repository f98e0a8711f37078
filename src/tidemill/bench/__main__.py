import sys

from tidemill.bench.apart import main

sys.exit(main())
