"""The paper's tables, rebuilt from stored records, with the published figures beside them."""

from spd_bench import require

require("methods", "harness")
