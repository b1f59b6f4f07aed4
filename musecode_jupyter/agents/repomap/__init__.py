"""The map of a repository, made without a model: files, symbols, imports, tests and what changes together."""
