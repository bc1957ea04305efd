"""What is published of the datasets: addresses, checksums, sizes, and scores of the data."""

from __future__ import annotations

from typing import NamedTuple


class Facts(NamedTuple):
    """What is in a published file, all its rows and episodes."""

    size: int | None = None
    rows: int | None = None
    episodes: int | None = None
    score: float | None = None
    """Mean return, normalised by the benchmark's reference returns."""
    quoted: bool = False
    """Rows, episodes and score are what others say of the file; else they were measured on it."""


UNKNOWN = Facts()

D4RL = "http://rail.eecs.berkeley.edu/datasets/offline_rl"
_MAZE = "ant_maze_v2/Ant_maze_{}-maze_noisy_multistart_{}_multigoal_{}_sparse_fixed.hdf5"
D4RL_FILES = {
    "halfcheetah-medium-v2": "gym_mujoco_v2/halfcheetah_medium-v2.hdf5",
    "halfcheetah-medium-replay-v2": "gym_mujoco_v2/halfcheetah_medium_replay-v2.hdf5",
    "halfcheetah-medium-expert-v2": "gym_mujoco_v2/halfcheetah_medium_expert-v2.hdf5",
    "hopper-medium-v2": "gym_mujoco_v2/hopper_medium-v2.hdf5",
    "hopper-medium-replay-v2": "gym_mujoco_v2/hopper_medium_replay-v2.hdf5",
    "hopper-medium-expert-v2": "gym_mujoco_v2/hopper_medium_expert-v2.hdf5",
    "walker2d-medium-v2": "gym_mujoco_v2/walker2d_medium-v2.hdf5",
    "walker2d-medium-replay-v2": "gym_mujoco_v2/walker2d_medium_replay-v2.hdf5",
    "walker2d-medium-expert-v2": "gym_mujoco_v2/walker2d_medium_expert-v2.hdf5",
    "antmaze-umaze-v2": _MAZE.format("u", False, False),
    "antmaze-umaze-diverse-v2": _MAZE.format("u", True, True),
    "antmaze-medium-play-v2": _MAZE.format("big", True, False),
    "antmaze-medium-diverse-v2": _MAZE.format("big", True, True),
    "antmaze-large-play-v2": _MAZE.format("hardest", True, False),
    "antmaze-large-diverse-v2": _MAZE.format("hardest", True, True),
    "kitchen-complete-v0": "kitchen/mini_kitchen_microwave_kettle_light_slider-v0.hdf5",
    "kitchen-partial-v0": "kitchen/kitchen_microwave_kettle_light_slider-v0.hdf5",
    "kitchen-mixed-v0": "kitchen/kitchen_microwave_kettle_bottomburner_light-v0.hdf5",
}
# Size and SHA-256 as TensorFlow Datasets records them for the files at the same addresses. Those of
# the kitchens are recorded in suk063/reachy-retarget on GitHub (legacy/docs/datasets/
# d4rl-kitchen-integration.md); that of kitchen-complete is the official file's, as we saw. Of
# AntMaze's medium-play only the size is published, in a reproduction of MeanFlowQL
# (arXiv:2511.13035) whose sizes of the four other mazes are TensorFlow's.
D4RL_SUMS: dict[str, tuple[int, str | None]] = {
    "halfcheetah-medium-v2": (
        237_727_262,
        "41324e8487a9556d8cfa4538827f8937f4d63dae3030825ebc9f3a726ed08ca0",
    ),
    "halfcheetah-medium-replay-v2": (
        59_448_533,
        "48d494a4770c11f48260736dec090b78bdca8375647ed4d24bfa5b6610c7f683",
    ),
    "halfcheetah-medium-expert-v2": (
        474_567_252,
        "015db75dae5bbe8e94029b71fa0bafc2073365df0c94744e71031189f3f79c06",
    ),
    "hopper-medium-v2": (
        152_756_557,
        "5bdf1bc4a713c82941de44633df669b36c89850b652a25985166796d25cf71a0",
    ),
    "hopper-medium-replay-v2": (
        75_854_457,
        "e121c5f7c9857a307baa9edc6a2c3b48e85fedb9ac316ecddd0f48ca7ef4e39b",
    ),
    "hopper-medium-expert-v2": (
        304_537_315,
        "9d51ad87f8c905be3880d84c6140bcdb7fbf39a19e046a237f238ba34fec9e26",
    ),
    "walker2d-medium-v2": (
        232_254_996,
        "cf00f43add04c17fdfc2958dd581dea0851b2e5bedbe6fda073758a8f841aeda",
    ),
    "walker2d-medium-replay-v2": (
        86_323_963,
        "e75de96a4f77acf7d4e0d6fdf0d7ccb177c26c44bb4388e4fd99f543ccfa18db",
    ),
    "walker2d-medium-expert-v2": (
        462_197_079,
        "6b8d7f868c45bbaedf460be797fb7271b46dee6ebe45fe7a64319f2005b59a04",
    ),
    "antmaze-umaze-v2": (
        232_532_949,
        "5ef15257771c50ef4d23c7de001750e96c8bb5d9b6a5e4a821dcfb3065fbd130",
    ),
    "antmaze-umaze-diverse-v2": (
        230_854_272,
        "c771dd63963cd7d9f55f24a6d809064f6b82250a6aeac4c9d13f9a1d06e8c932",
    ),
    "antmaze-medium-play-v2": (231_110_764, None),
    "antmaze-medium-diverse-v2": (
        231_095_166,
        "ad9dcbac05d1f8744a7a216083f513662f43f64f28a4a5eb225e9811902dfae7",
    ),
    "antmaze-large-play-v2": (
        230_880_653,
        "6d353df2457829925d7f9d4b0215587469908bd57478ea76f16417cfa944f471",
    ),
    "antmaze-large-diverse-v2": (
        231_183_710,
        "84f775eb7956ea9cc766704710dc520a8ab357adc7522ade47f556f0e335e284",
    ),
    "kitchen-complete-v0": (
        556_544,
        "cd797c38cd52dfbe3f960cef73935cc724847abd189e47a703a7a2315ed60a81",
    ),
    "kitchen-partial-v0": (
        19_558_459,
        "57bfd9c5fe88a7cf702bbaf8b7cd800d30cd869e7f73416007238d26cd859800",
    ),
    "kitchen-mixed-v0": (
        19_560_760,
        "a30382a50278fdaea2e2d88e5f2836a95bcf9b581d252617872fd6537302721b",
    ),
}
D4RL_ENVIRONMENTS = {
    "halfcheetah": "HalfCheetah-v4",
    "hopper": "Hopper-v4",
    "walker2d": "Walker2d-v4",
}

NEORL2 = (
    "http://datasets.polixir.site/neorl2/{task}/{task}-{split}.npz",
    "https://huggingface.co/datasets/polixirai/NeoRL2/resolve/main/{task}/{split}/"
    "{task}-{split}.parquet",
)
NEORL2_MD5 = {
    "Pipeline-train": "59902b333be6edb9252acfc2302cc1ed",
    "Pipeline-val": "c502f529db1de55ebf37d63e1defca56",
    "Simglucose-train": "6195a3634379f576958440b7e0c8fc53",
    "Simglucose-val": "6df907556cbc96002757f6d652be9d92",
    "RocketRecovery-train": "b1a7bf1ec16cfef390b6b1cec2b13ddc",
    "RocketRecovery-val": "0b25bd998e92b4f808f8ee5207ce06dd",
    "RandomFrictionHopper-train": "3ef2c41483689729d3b5a3aef3b7b8f7",
    "RandomFrictionHopper-val": "2628f354222de37803451c63e84a1269",
    "DMSD-train": "88dfa39aa18904e809056b51c2e6319b",
    "DMSD-val": "be6c39c0e73c17029206e714068f26b7",
    "Fusion-train": "98979f97e0b59dd46bbb9237176a68ab",
    "Fusion-val": "9baa5556fac98b86ab9b58040da17d86",
    "SafetyHalfCheetah-train": "c35efec4a25fb45837487ba00f74e1ed",
    "SafetyHalfCheetah-val": "da65ba51a4cc17370572da3c801d228b",
}
NEORL2_TRAJECTORIES = {
    "RocketRecovery-train": 100,
    "RocketRecovery-val": 25,
    "Fusion-train": 20,
    "Fusion-val": 5,
}

# Measured on the official files. A kitchen's demonstration counts the sub-tasks done at its end.
MEASURED = {
    "builtin/hopper-replay": Facts(None, 117_603, 611, 18.1),
    "d4rl/kitchen-complete-v0": Facts(556_544, 3_680, 19, 100.0),
    "neorl2/Simglucose": Facts(1_466_050, 100_257, 280, 73.9),
    "neorl2/Simglucose-val": Facts(290_922, 20_018, 62, 65.9),
    "neorl2/RocketRecovery-val": Facts(1_273_636, 20_077, 146, 70.5),
    "neorl2/RandomFrictionHopper-val": Facts(2_134_598, 20_047, 218, 23.2),
    "neorl2/DMSD": Facts(4_117_923, 100_000, 1_000, 56.6),
    "neorl2/DMSD-val": Facts(790_776, 20_000, 200, 55.0),
    "neorl2/Fusion-val": Facts(2_003_959, 20_000, 200, 49.6),
    "neorl2/SafetyHalfCheetah": Facts(2_843_402, 18_000, 18, 73.6),
    "neorl2/SafetyHalfCheetah-val": Facts(316_329, 2_000, 2, 69.5),
}

# Rows, episodes and mean return of the complete episodes of a D4RL file, as others report them.
# Medium and medium-replay: what Decision Transformer's download script prints ("Number of samples
# collected", "Trajectory returns: mean"), which public copies of it keep in full. Medium-expert is
# the medium and the expert file in one: 2,000, 3,213 and 2,190 episodes, of which 1,000, 1,027 and
# 1,000 are the expert's (from public notes on these files), with mean returns of 10,656.426,
# 3,511.358 and 4,920.507 by the same script; the rest follows from that. HalfCheetah's episodes all
# have 1,000 steps. Kitchens: the same place as their sizes. The share of AntMaze's trajectories
# that reach the goal, and the sub-tasks done in the two large kitchens, are not published anywhere
# we know of.
D4RL_RETURNS: dict[str, tuple[int, int | None, float | None]] = {
    "halfcheetah-medium-v2": (1_000_000, 1_000, 4_770.335),
    "halfcheetah-medium-replay-v2": (202_000, 202, 3_093.286),
    "halfcheetah-medium-expert-v2": (2_000_000, 2_000, 7_713.380),
    "hopper-medium-v2": (999_906, 2_186, 1_422.056),
    "hopper-medium-replay-v2": (402_000, None, 467.302),
    "hopper-medium-expert-v2": (1_999_400, 3_213, 2_089.878),
    "walker2d-medium-v2": (999_995, 1_190, 2_852.088),
    "walker2d-medium-replay-v2": (302_000, None, 682.701),
    "walker2d-medium-expert-v2": (1_999_209, 2_190, 3_796.572),
    "kitchen-partial-v0": (136_950, 613, None),
    "kitchen-mixed-v0": (136_950, 613, None),
}

# "Data" in the paper's Tab-NeoRL2, of sets that we could not measure.
NEORL2_SCORES = {
    "Pipeline": 69.3,
    "RocketRecovery": 75.3,
    "RandomFrictionHopper": 28.7,
    "Fusion": 48.8,
}
