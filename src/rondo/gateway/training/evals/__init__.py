"""OpenAI's Evals API: requests, data sources, and the runner of evals.

requests.py  fields of evals and runs, and the criteria that requests may use
sources.py   records and samples of a data source: inline, files, stored responses
sampling.py  requests to the sampled model, and samples from its responses
judging.py   grading of samples, and requests of judges to the gateway's own models
runner.py    runs from state to state, across crashes of the gateway
shown.py     evals, runs and output items as JSON
"""
