import pytest

from rondo.base.errors import ConfigError
from rondo.parallel.ranks.world import World, read_world


def test_no_launcher_is_one_process() -> None:
    assert read_world({}) == World()


@pytest.mark.parametrize(
    ("environment", "world"),
    [
        (
            {
                "RANK": "3",
                "WORLD_SIZE": "4",
                "LOCAL_RANK": "1",
                "MASTER_ADDR": "10.0.0.1",
                "MASTER_PORT": "1234",
            },
            World(3, 4, 1, "10.0.0.1", 1234),
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
            World(1, 2, 1),
        ),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"}, World(0, 2, 0)),
        (
            {
                "SLURM_PROCID": "5",
                "SLURM_STEP_NUM_TASKS": "8",
                "SLURM_LOCALID": "1",
                "SLURM_STEP_NODELIST": "gpu[03-06,9]",
                "SLURM_JOB_ID": "12345",
            },
            World(5, 8, 1, "gpu03", 32345),
        ),
        (
            {
                "SLURM_PROCID": "1",
                "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_STEP_NUM_NODES": "1",
                "SLURM_STEP_NODELIST": "gpu3",
            },
            World(1, 2),
        ),
        # A batch script that starts the command without srun is one process, however many tasks the job has.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "12"}, World()),
    ],
)
def test_each_launcher(environment: dict[str, str], world: World) -> None:
    assert read_world(environment) == world


@pytest.mark.parametrize(
    ("environment", "words"),
    [({"RANK": "x", "WORLD_SIZE": "4"}, "RANK='x'"), ({"RANK": "4", "WORLD_SIZE": "4"}, "not below")],
)
def test_a_launcher_that_says_nonsense(environment: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_world(environment)
