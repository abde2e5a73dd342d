"""How is the file source read without Spark? Which files an epoch has, and what their rows are.

    listing        which files are new, in which order, and which are too old
    reader         the planner and reader of one directory, put together
    settings       the options of the source: those that are understood, and why others are not
    errors         what a run ends with when a file cannot be read
    line_splits    the bytes of a text file, in ranges and cut into whole lines
    text_rows      files of lines: quick for whole blocks, line by line where that is not certain
    json_rows      JSON lines, quick and line by line
    csv_rows       CSV likewise
    parse_values   values written as text: one, or a column at once
    parquet_rows   Parquet files, with their columns fitted to the schema

It must not know Spark's classes, nor an epoch. Its rows are certainly those that Spark's readers give; a line of which that is not certain is refused by name.
"""
