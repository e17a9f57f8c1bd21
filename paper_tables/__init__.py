"""The paper's tables, rebuilt from stored records, with the published figures beside them."""
