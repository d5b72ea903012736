"""The commands of the laboratory, one file each, and what the values of their flags may be."""
