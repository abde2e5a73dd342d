"""What does a person look at? A status that is data, and what is drawn of it.

    report      the status of a pipeline, of its checkpoint, and of its tables, views and joins, as data
    render      a status, for terminals and notebooks
    render_rows rows of a computation, for terminals
    render_relations  tables, views and joins, for terminals
    explain     the plan of a pipeline
    narrator    what a run says while it goes on
    check       are the views of a checkpoint right?

It reads what the engine has committed, and changes nothing.
"""
