"""What it takes to check a decoding method without a model: a target made of tables, drafters that
follow a script, exact laws, and the checks themselves."""
