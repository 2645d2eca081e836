"""AIConfigurator's measured op tables, turned into provider and collective tables.

The source is a directory as ai-dynamo/aiconfigurator (Apache-2.0) publishes it, `<engine>/<version>/<op>_perf.parquet`
(or .csv, .txt), or the same tables as flat files `<op>_<engine>_<version>.csv[.gz]`. Written are
`<topologies>/devices/<device>/<engine>-<version>/{<kernel>.csv, meta.yaml, NOTICE}` and
`<topologies>/<machine>/{<collective>.csv, meta.yaml, NOTICE}`. Formats: docs/data.md. Standard library only, but for
Parquet; the same input gives the same bytes.
"""

from .collectives import import_collectives
from .kernels import import_provider
from .reading import Listing, TableError, find_tables
from .writing import Staged, staging

__all__ = ["Listing", "Staged", "TableError", "find_tables", "import_collectives", "import_provider", "staging"]
