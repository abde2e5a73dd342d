"""How are tables and views worked on in columns? The same rows, messages and results as by visits (`views/`), for many keys at once.

What is right is said by the visits; whatever is unusual is left to them, key by key or for a whole shard in an epoch.

    steps        which step runs a table or a view
    column_step  what the steps share, and the way back to visits
    packing      msgpack in columns: values to bytes
    unpacking    and back: where the fields of documents lie in their bytes
    arriving     what has come for a table
    mapping      the map of a consumer
    saying       entries and messages
    table_step   a table's step
    hearing      what has come for a view: messages and the entries in them
    part_sums    what messages bring to totals
    contributing  contributions of many groups: looked up and written anew
    view_step    a view's step
    explained    what works on columns, and why the rest does not
"""
