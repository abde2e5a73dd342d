"""The demo of views: users who change their names and move, totals over them that are always right, drivers that are killed, and DuckDB as a judge.

world      the users and what happens to them, as files; the pipeline over them
driver     the pipeline in a process of its own, to be killed
judge      what is published, against SQL over the same files
tree       a growing group: what its tree looks like from epoch to epoch
picture    that, as a picture
run        all of it, from nothing to the picture
"""
