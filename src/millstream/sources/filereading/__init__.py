"""How the file source is read without Spark: which files an epoch has, and what their rows are.

    listing     which files are new, in which order, and which are too old
    reader      the planner and reader of one directory, put together
    settings    the options of the source: those that are understood, and why others are not
    sparklog    what Spark's own file source has read, from the log that it kept
    refusal     what a run ends with when a file cannot be read
    lines       the bytes of a text file, cut into whole lines
    texts       dates, times and numbers written as text, by Spark's rules
    tokens      one line of JSON, token by token, by the rules of Spark's parser
    jsonlines   JSON lines: quick where that is certainly the same, line by line elsewhere
    csvrows     CSV likewise
    csvtokens   one line of CSV, value by value, by the rules of Spark's parser
    castings    columns of text made columns of another type, where that is certainly the same
    parquet     Parquet files, with their columns fitted to the schema

It must not know Spark's classes, nor an epoch. Its rows are the same that Spark's readers give, or it refuses.
"""
