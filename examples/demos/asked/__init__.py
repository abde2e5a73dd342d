"""The flagship, asked while it runs: `make demo-service`.

judge    whether an answer is what the checkpoint says at that epoch
run      the pipeline, the server beside it, a kill, and the answers
"""
