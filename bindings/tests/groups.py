# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of groups from Python and of the PyTorch backend.

Without arguments, runs each scenario below as several processes of this script, and prints its
claim, which is its docstring. A process whose scenario fails prints the error and exits with 1.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

LABEL = os.environ.get("KUMI_TEST_LABEL", "groups")


# Scenarios: the code of one rank. The docstring is the claim. SCENARIOS has the number of ranks.


def arrays(group):
    """each collective on NumPy arrays gives the same result as NumPy"""
    import numpy as np

    rank, size = group.rank, group.size
    ranks = np.arange(size)
    sums = np.arange(1000.0) + rank
    assert group.all_reduce(sums) is sums
    assert np.allclose(sums, size * np.arange(1000.0) + ranks.sum())
    assert np.array_equal(group.all_gather(np.array([rank, 2 * rank])), np.stack([ranks, 2 * ranks], 1))
    rows = group.gather(np.full(5, rank), root=1)
    assert (rows is None) == (rank != 1) and (rank != 1 or np.array_equal(rows[:, 0], ranks))
    out = np.empty(3)
    group.scatter(out, np.arange(3.0 * size).reshape(size, 3) if rank == 0 else None)
    assert out[0] == 3 * rank
    vector = np.full(100_000, 7 if rank == 2 else 0)
    assert group.broadcast(vector, root=2).min() == 7
    assert np.array_equal(
        group.reduce_scatter(np.arange(size * 4).reshape(size, 4)), size * np.arange(4 * rank, 4 * rank + 4)
    )
    assert np.array_equal(group.all_to_all(np.full((size, 3), rank))[:, 0], ranks)
    product = group.reduce(np.full(4, 2), op="product")
    assert (product is None) == (rank != 0) and (rank != 0 or (product == 2**size).all())
    assert [part.tolist() for part in group.all_gather_v(np.arange(rank))] == [
        list(range(peer)) for peer in ranks
    ]
    parts = group.gather_v(np.full(rank + 1, rank), root=2)
    assert rank != 2 or [len(part) for part in parts] == [peer + 1 for peer in ranks]
    parts = group.all_to_all_v([np.full(rank * to, rank) for to in ranks])
    assert [len(part) for part in parts] == [rank * peer for peer in ranks]
    group.barrier()
    for bits in (np.array([1 << rank], "uint16"), np.array([rank], "int8")):
        group.all_reduce(bits, "or" if bits.dtype == "uint16" else "max")
        assert bits[0] == (2**size - 1 if bits.dtype == "uint16" else size - 1)


def bools(group):
    """booleans are combined logically: a sum is "or", a product is "and\""""
    import numpy as np

    mine = np.array([group.rank == 1, True, False])
    for op, expected in (("sum", [1, 1, 0]), ("product", [0, 1, 0]), ("xor", [1, 1, 0])):
        came = group.all_reduce(mine.copy(), op)
        assert came.view("uint8").tolist() == expected, (op, came.view("uint8"))


def forked(group, victim=1):
    """a forked child has no connections of the group, and does not hide its parent's death"""
    import kumi.coll
    import numpy as np

    group.barrier()
    message = group.receive(np.zeros(1), tag=9, wait=False) if group.rank == victim else None
    if group.rank == victim:
        said, says = os.pipe()
        if os.fork() == 0:
            try:
                open_ones = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
                sockets = [one for one in open_ones if os.path.exists(one) or os.path.islink(one)]
                sockets = [one for one in map(os.readlink, sockets) if one.startswith("socket:")]
                assert not sockets, sockets
                for wrong in (group.barrier, lambda: group.rank, message.wait, group.shrink):
                    try:
                        wrong()
                        os.write(says, b"nothing was refused")
                    except kumi.coll.GroupError as error:
                        assert "was forked from process" in str(error), error
                group.close()
                # The parent's group remains usable.
                os.write(says, b"ok")
                time.sleep(1)
            except BaseException as error:
                os.write(says, repr(error).encode())
            os._exit(0)
        os.close(says)
        word = os.read(said, 1000)
        assert word == b"ok", word
    group.barrier()
    if group.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        while True:
            group.barrier()
    except kumi.coll.PeerLost as error:
        # Without a closed connection, the loss would be detected only after 700 ms.
        assert "nothing received" not in str(error) and time.monotonic() - began < 0.5, error


def late(group):
    """several operations run at the same time, and complete in any order of waits"""
    import numpy as np

    started = [group.all_reduce(np.full(5000, float(at)), wait=False) for at in range(10)]
    message = group.send(np.array([group.rank]), (group.rank + 1) % group.size, tag=5, wait=False)
    for at in reversed(range(10)):
        assert (started[at].wait() == at * group.size).all()
    came = np.zeros(1, "int64")
    before = (group.rank - 1) % group.size
    assert group.receive(came, tag=5) == before and came[0] == before
    message.wait()
    assert message.done()
    # The caller drops it, and it completes nevertheless.
    group.all_reduce(np.zeros(100_000), wait=False)
    group.barrier()


def slips(group):
    """invalid arguments are rejected by name, and the group remains usable"""
    import kumi.coll
    import numpy as np

    def refused(function, *arguments, **named):
        try:
            function(*arguments, **named)
        except (TypeError, ValueError, kumi.coll.GroupError) as error:
            return str(error)
        return "nothing was refused"

    matrix = np.zeros((4, 4))
    assert "a list: expected a NumPy array" in refused(group.all_reduce, [1, 2])
    assert "not C-contiguous" in refused(group.all_reduce, matrix[:, 1])
    assert "root 9 out of range (0–2)" in refused(group.broadcast, matrix, root=9)
    assert "unknown reduction `mean`" in refused(group.all_reduce, matrix, "mean")
    assert "xor is not defined for float64" in refused(group.all_reduce, matrix, "xor")
    assert "one row for each of 3 ranks" in refused(group.all_to_all, matrix)
    assert "invalid peer rank 3" in refused(group.send, matrix, 3)
    unlike = refused(group.all_reduce, np.zeros(5 if group.rank == 1 else 6))
    assert "an all-reduce of 40 bytes" in unlike and "an all-reduce of 48 bytes" in unlike, unlike
    group.barrier()


def secret(rank, size):
    """a process without the job's secret is rejected, and the ranks are not disturbed"""
    import kumi.coll

    if rank == 2:
        os.environ["KUMI_JOB_SECRET"] = "what another job knows"
        try:
            kumi.coll.Group()
            raise AssertionError("nothing was refused")
        except kumi.coll.GroupError as error:
            assert "it has another job secret (here: KUMI_JOB_SECRET" in str(error), error
    os.environ["KUMI_JOB_SECRET"] = "what the job's processes know"
    with kumi.coll.Group() as group:
        group.barrier()
        assert group.size == size


def survive(group, victim):
    """Checks that the loss of `victim` raises on the others within a second. Shrinks the group.

    Returns "gone" on the victim, which must then end or stop, and "left" on the others.
    """
    import kumi.coll
    import numpy as np

    began = last = time.monotonic()
    try:
        while True:
            group.all_reduce(np.ones(200_000))
            last = time.monotonic()
            if group.rank == victim and time.monotonic() - began > 0.3:
                return "gone"
    except kumi.coll.PeerLost as error:
        assert error.ranks == [victim], error.ranks
        assert time.monotonic() - last < 1.0, time.monotonic() - last
    group.shrink()
    assert victim not in group.members and group.size == 3, group.members
    one = np.ones(1000)
    group.all_reduce(one)
    assert (one == 3).all()
    return "left"


def killed(group):
    """when a rank is killed, the others fail within a second, shrink, and get correct results"""
    if survive(group, 2) == "gone":
        os.kill(os.getpid(), signal.SIGKILL)


def stopped(group):
    """when a rank is stopped, the others fail within a second, shrink, and get correct results"""
    if survive(group, 1) == "gone":
        os.kill(os.getpid(), signal.SIGSTOP)


def torch_collectives(rank, size):
    """collectives of torch.distributed give correct results"""
    import torch
    import torch.distributed as dist

    def same(tensor, value):
        assert (tensor == value).all(), (tensor, value)

    strided = torch.arange(10.0) + rank
    dist.all_reduce(strided[::2])
    same(strided[0], size * (size - 1) / 2)
    same(strided[1], 1 + rank)
    rows = [torch.zeros(3) for _ in range(size)]
    dist.all_gather(rows, torch.full((3,), float(rank)))
    same(torch.stack(rows)[:, 0], torch.arange(float(size)))
    objects = [None] * size if rank == 1 else None
    dist.gather_object({"rank": rank, "text": "x" * rank}, objects, dst=1)
    assert rank != 1 or [one["rank"] for one in objects] == list(range(size))
    objects = [None]
    dist.scatter_object_list(objects, [at * at for at in range(size)] if rank == 0 else None, src=0)
    assert objects == [rank * rank]
    objects = ["told"] if rank == 0 else [None]
    dist.broadcast_object_list(objects, src=0)
    assert objects == ["told"]
    most = torch.full((4,), rank)
    dist.reduce(most, dst=0, op=dist.ReduceOp.MAX)
    assert rank != 0 or most[0] == size - 1
    mine = torch.zeros(2)
    dist.scatter(mine, [torch.full((2,), float(at)) for at in range(size)] if rank == 0 else None)
    same(mine, rank)
    dist.reduce_scatter(mine, [torch.full((2,), float(at)) for at in range(size)])
    same(mine, rank * size)
    dist.reduce_scatter_tensor(mine, torch.ones(2 * size))
    same(mine, size)
    whole = torch.zeros(2 * size)
    dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
    same(whole[2:4], 1)
    parts = [torch.zeros(2) for _ in range(size)]
    dist.all_to_all(parts, [torch.full((2,), float(rank)) for _ in range(size)])
    same(torch.stack(parts)[:, 1], torch.arange(float(size)))
    splits = [to + 1 for to in range(size)]
    came = torch.zeros((rank + 1) * size)
    dist.all_to_all_single(came, torch.full((sum(splits),), float(rank)), [rank + 1] * size, splits)
    same(came[-1], size - 1)
    for kind in (torch.float16, torch.bfloat16, torch.int8):
        ones = torch.ones(5, dtype=kind)
        dist.all_reduce(ones)
        same(ones, size)
    if rank == 0:
        dist.send(torch.ones(5), 1)
    if rank == 1:
        came = torch.zeros(5)
        # PyTorch 2 does not ask a backend in Python for the source rank.
        asks = torch.__version__.startswith("1.")
        assert dist.recv(came, None if asks else 0) == 0
        same(came, 1)
    pair = dist.new_group([0, 2])
    if rank in (0, 2):
        ones = torch.ones(2)
        dist.all_reduce(ones, group=pair)
        same(ones, 2)
    dist.barrier()


def train(model, optimizer):
    """Trains a model to add twenty numbers, with this rank's own data, and checks its loss."""
    import torch

    losses = []
    for _ in range(30):
        inputs = torch.randn(16, 20)
        loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5]), losses


def torch_training(rank, size):
    """a model that DistributedDataParallel trains is the same on all ranks, and learns"""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(rank)
    layers = [torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 1)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    train(model, optimizer)
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    least, most = weights.clone(), weights.clone()
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    assert torch.equal(least, most)


def torch_sharded(rank, size):
    """a model that FSDP shards learns, and is restored from a distributed checkpoint"""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(0)
    layers = [torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 1)]
    model = torch.nn.Sequential(*layers)
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    torch.manual_seed(rank)
    train(model, optimizer)
    folder = [tempfile.mkdtemp(prefix="kumi-checkpoint-") if rank == 0 else None]
    dist.broadcast_object_list(folder)
    trained = model[0].weight.full_tensor()

    def state():
        weights, steps = get_state_dict(model, optimizer)
        return {"weights": weights, "steps": steps}

    try:
        checkpoint.save(state(), checkpoint_id=f"{folder[0]}/waited")
        checkpoint.async_save(state(), checkpoint_id=f"{folder[0]}/beside").result()
        for saved in ("waited", "beside"):
            with torch.no_grad():
                for weight in model.parameters():
                    weight.zero_()
            lost = state()
            checkpoint.load(lost, checkpoint_id=f"{folder[0]}/{saved}")
            set_state_dict(model, optimizer, model_state_dict=lost["weights"], optim_state_dict=lost["steps"])
            assert torch.equal(model[0].weight.full_tensor(), trained)
    finally:
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder[0])


def torch_beside(rank, size):
    """a process group has kumi beside another backend, and other groups have one backend each"""
    import torch
    import torch.distributed as dist

    ones = torch.ones(3)
    for group in (None, dist.new_group(backend="gloo"), dist.new_group(backend="kumi")):
        dist.all_reduce(ones, group=group)
    assert ones[0] == size**3
    came = torch.zeros(4)
    after, before = (rank + 1) % size, (rank - 1) % size
    sends = dist.P2POp(dist.isend, torch.full((4,), float(rank)), after)
    for work in dist.batch_isend_irecv([sends, dist.P2POp(dist.irecv, came, before)]):
        work.wait()
    assert came[0] == before


def torch_late(rank, size):
    """an operation past the group's timeout raises, as does its future; a wait may name a limit"""
    import datetime

    import kumi.coll
    import torch
    import torch.distributed as dist

    hasty = dist.new_group(timeout=datetime.timedelta(seconds=1.5))
    dist.barrier()
    if rank == 1:
        # The other ranks have reached their limits.
        dist.barrier()
        return
    began = time.monotonic()
    work = dist.all_reduce(torch.ones(1000), group=hasty, async_op=True)
    future = work.get_future()
    try:
        work.wait(datetime.timedelta(milliseconds=100))
        raise AssertionError("there was no limit")
    except kumi.coll.Timeout as error:
        assert "an all-reduce of 4000 bytes did not complete within 0.1 s" in str(error), error
    for waits in (work.wait, future.wait):
        try:
            waits()
            raise AssertionError("there was no limit")
        except Exception as error:  # a future raises PyTorch's own exception
            assert "did not complete within 1.5 s" in str(error), error
    assert 1.4 < time.monotonic() - began < 3, time.monotonic() - began
    dist.barrier()


def torch_futures(rank, size):
    """futures are set in order of completion, and their callbacks may wait for one another"""
    import torch
    import torch.distributed as dist

    first, second = dist.new_group(), dist.new_group()
    ones = [torch.ones(1000) for _ in range(2)]
    if rank == 1:
        behind = dist.all_reduce(ones[0], group=first, async_op=True).get_future()
        before = dist.all_reduce(ones[1], group=second, async_op=True).get_future()
        # The callback waits for `behind`, which completes only after the send below. So a callback
        # must not block the futures that are set later.
        chained = before.then(lambda done: (behind.wait(), done.value())[1])
        before.wait()
        dist.send(torch.ones(1), 0)
        chained.wait()
    else:
        dist.all_reduce(ones[1], group=second)
        dist.recv(torch.ones(1), 1)
        dist.all_reduce(ones[0], group=first)
    assert (ones[0] == size).all() and (ones[1] == size).all()
    # Two threads detect at the same time that an operation is complete.
    for _ in range(300):
        work = dist.all_reduce(torch.ones(10), async_op=True)
        future = work.get_future()
        while not work.is_completed():
            pass
        future.wait()


def torch_lost(rank, size):
    """if a rank is lost, torch's collectives fail within a second"""
    import kumi.coll
    import torch
    import torch.distributed as dist

    dist.barrier()
    # Rank 1's control messages for the barrier must have arrived first. When a process ends with
    # unread bytes in a socket, the kernel resets the connection and discards them.
    time.sleep(0.2)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        while True:
            dist.all_reduce(torch.ones(1000))
    except kumi.coll.PeerLost:
        assert time.monotonic() - began < 1.0


SCENARIOS = {
    "arrays": (arrays, 4, ()),
    "late": (late, 3, ()),
    "bools": (bools, 3, ()),
    "forked": (forked, 3, (1,)),
    "slips": (slips, 3, ()),
    "secret": (secret, 3, ()),
    "killed": (killed, 4, (2,)),
    "stopped": (stopped, 4, (1,)),
    "torch_collectives": (torch_collectives, 4, ()),
    "torch_training": (torch_training, 3, ()),
    "torch_sharded": (torch_sharded, 3, ()),
    "torch_beside": (torch_beside, 3, ()),
    "torch_futures": (torch_futures, 2, ()),
    "torch_late": (torch_late, 3, ()),
    "torch_lost": (torch_lost, 3, (1,)),
}
# Modules that a scenario needs and some versions of PyTorch lack.
MODULES = {"torch_sharded": "torch.distributed.fsdp._fully_shard", "torch_beside": "torch.distributed.tensor"}
BACKENDS = {"torch_beside": "cpu:kumi,cuda:gloo"}


# Scenarios that create their groups themselves.
ALONE = {"secret"}


def one_rank(name):
    scenario = SCENARIOS[name][0]
    if name in ALONE:
        return scenario(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    if not name.startswith("torch"):
        import kumi.coll

        with kumi.coll.Group() as group:
            return scenario(group)
    import kumi.torch  # noqa: F401: the import registers the backend
    import torch.distributed as dist

    dist.init_process_group(BACKENDS.get(name, "kumi"))
    scenario(dist.get_rank(), dist.get_world_size())
    if name != "torch_lost":
        dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(name):
    """Runs a scenario. Returns its errors, or an empty string."""
    _, ranks, gone = SCENARIOS[name]
    port, processes = str(free_port()), []
    for rank in range(ranks):
        told = dict(
            os.environ,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
            RANK=str(rank),
            WORLD_SIZE=str(ranks),
            KUMI_INTERFACE="lo",
        )
        processes.append(
            subprocess.Popen([sys.executable, __file__, name], env=told, stderr=subprocess.PIPE, text=True)
        )
    why = []
    until = time.monotonic() + 60
    for rank, process in enumerate(processes):
        if rank in gone:
            continue
        try:
            _, said = process.communicate(timeout=max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            why.append(f"rank {rank} hangs")
            continue
        if process.returncode != 0:
            why.append(f"rank {rank}: {said.strip()}")
    for rank in gone:
        processes[rank].kill()
        processes[rank].communicate()
    return "\n".join(why)


def main():
    failed = False
    for name, (scenario, _, _) in SCENARIOS.items():
        needs = MODULES.get(name, "torch" if name.startswith("torch") else "numpy")
        if subprocess.run([sys.executable, "-c", f"import {needs}"], capture_output=True).returncode:
            print(f"skipped {LABEL}: {scenario.__doc__}: there is no {needs}")
            continue
        why = run(name)
        print(
            f"ok     {LABEL}: {scenario.__doc__}" if not why else f"FAILED {LABEL}: {scenario.__doc__}: {why}"
        )
        failed = failed or bool(why)
    sys.exit(failed)


if __name__ == "__main__":
    one_rank(sys.argv[1]) if len(sys.argv) > 1 else main()
