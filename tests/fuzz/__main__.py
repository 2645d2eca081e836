import sys

from fuzzer import main

sys.exit(main())
