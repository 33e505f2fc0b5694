"""Launchers: where the process of a job runs. Each has the methods of `launcher.Launcher`.

launcher.py  the interface, and the reported state of an attempt
folder.py    the folder of an attempt: output, exit code, and the job's hash as its process reports it
choice.py    launchers of a gateway, by its settings
command.py   commands of a job's processes, and the shell that waits for them
identity.py  name of the place whose jobs are processes of one machine
local.py     processes on this machine, with slots for CPU jobs and GPUs
memory.py    memory of a local attempt, and its limit
members.py   every process of an attempt on this machine, found by its environment
slurm/       batch jobs of Slurm
kubernetes/  TrainJobs and JobSets
ray_jobs.py  jobs of a Ray cluster
skypilot.py  task files of SkyPilot
"""
