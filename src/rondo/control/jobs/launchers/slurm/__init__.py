"""Jobs in a Slurm cluster, through the command line of Slurm.

Inputs are attempts. Outputs are batch jobs, each with a script in the attempt's folder. RONDO_HOME is on a file system
that all nodes share.

    launcher.py  submission, states, cancellation, nodes
    script.py    the batch script of an attempt
    commands.py  sbatch, squeue, sacct, sinfo and scancel as functions, for each version of their JSON
"""
