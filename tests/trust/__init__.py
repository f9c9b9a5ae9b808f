"""Campaigns that try to break the package: `PYTHONPATH=tests python -m trust` runs them and prints one table.

`kills` ends trainings and other commands in the middle of everything, `inputs` hands over what is wrong in every way,
`processes` trains with several processes, `soak` for many epochs, `server` behaves badly towards the server, `ray`
takes a worker away from a cluster. The same seed tries the same.
"""
