"""Jobs in a Kubernetes cluster, as objects of existing operators.

Inputs are attempts. Outputs are TrainJobs (Kubeflow Trainer), or JobSets where Trainer is not installed, with the label
of a Kueue queue. RONDO_HOME is a persistent volume that the gateway and all pods mount at the same path.

    manifest.py  TrainJob and JobSet of an attempt, and the Secret with its keys
    pods.py      causes of a failed attempt
    api.py       the cluster's API: create, read, delete
    launcher.py  states from conditions, cancellation, nodes
"""
