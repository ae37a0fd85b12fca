"""The folder that `prove` puts on a child's PYTHONPATH, for its sitecustomize."""
