"""How do records become results, in columns?

    expressions    what users write of columns: names, SQL texts, ms.col; as a value of one record, as an Arrow column, as SQL for Spark
    record_keys    keys of internal streams that are expressions
    sql_text       SQL texts to expressions: a small part of Spark's SQL, and what is said of the rest
    row_values     what every operation of an expression gives for the values of one record, and which types it takes
    column_values  what it gives for Arrow columns

Pure: value in, value out. It must not know pyspark, epochs or state.
"""
