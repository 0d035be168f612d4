"""Modules of our own with the imports, names and shapes of those in ElasticDL's model zoo, and what becomes of each."""
