"""What does a person look at? A status that is data, and what is drawn of it.

    report      the status of a pipeline, of its checkpoint, and of its tables, views and joins, as data
    render      a status and rows, for terminals
    render_relations  tables, views and joins, for terminals
    modes       how epochs are run, for terminals
    html        a status, for notebooks
    narrator    what a run says while it goes on
    check       are the views of a checkpoint right?
    check_plan  what is checked, and what was found

It reads what the engine has committed, and changes nothing.
"""
