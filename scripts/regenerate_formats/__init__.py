"""Writes docs/formats.md, the file formats field by field, and the schema of the tolerance file.

Both follow from the records: their types, and the line of doc under each field.
"""
