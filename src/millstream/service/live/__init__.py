"""What does a running pipeline know? Its committed state, followed epoch by epoch and served.

It must not know how the tables of a node are kept.
"""
