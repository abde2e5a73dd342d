"""What does a person look at? A status that is data, and views of it.

    report      a status, worked out from a manifest and the last epochs
    inspect     a checkpoint made readable
    tables      tables, views and joins of a checkpoint, read without the code that made them
    relations   what a manifest says of them: how large they are, how they are laid out, how far a fill is
    audit       are the views of a checkpoint right? audit_plan: what is checked, and what was found
    columns     values of any kind as columns of Arrow
    view, relation_view, html  for terminals, for notebooks
    narrator    what a run says while it goes on

It reads what the engine has committed, and changes nothing.
"""
