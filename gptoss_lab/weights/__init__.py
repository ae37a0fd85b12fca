"""Part 1 of the course: a checkpoint's way from a file to a model.

`checkpoint` knows names, shapes and files, `streaming` yields `(name, tensor)`, `loading` holds one function
per way of loading.
"""
