"""Where tensors are: copies in memories, which of them matter from here on, and what a fetch costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from partition.search.arrays import Bytes, Ints
    from partition.search.encode import Encoded
    from partition.search.scheme import Scheme


class Copies:
    """Where a tensor is: (origin memory, set of memories with a copy), numbered; moves start at the origin."""

    def __init__(self, encoded: Encoded) -> None:
        homes = range(len(encoded.homes))
        self.all = [(o, mask) for o in homes for mask in range(1 << len(homes)) if mask >> o & 1]
        number = {copy: index for index, copy in enumerate(self.all)}
        self.number = number
        self.after = np.array([[number[o, mask | 1 << h] for o, mask in self.all] for h in homes], dtype=np.uint8)
        self.everywhere = number[0, (1 << len(homes)) - 1]
        missing = [[not mask >> h & 1 for h in homes] for _, mask in self.all]
        pair = [[o * len(homes) + h for h in homes] for o, _ in self.all]
        self._missing, self._pair = np.array(missing), np.array(pair)
        self._encoded = encoded
        self._same: dict[tuple[int, int], Bytes] = {}

    def fetch(self, tensor: int) -> Ints:
        """Return the cost rows of using `tensor`, by copy state and by the memory it is wanted in."""
        return np.asarray(self._encoded.move_cost[tensor][self._pair] * self._missing[..., None])

    def same(self, tensor: int, useful: int) -> Bytes:
        """Map each copy state to the first with the same cost to every memory of the set `useful`.

        States that cost the same from here on are one state: this is exact and is what keeps them few.
        """
        key = (tensor, useful)
        if key not in self._same:
            homes = [h for h in range(len(self._encoded.homes)) if useful >> h & 1]
            future = self.fetch(tensor)[:, homes].reshape(len(self.all), -1)
            first: dict[bytes, int] = {}
            rows = [first.setdefault(row.tobytes(), index) for index, row in enumerate(future)]
            self._same[key] = np.array(rows, dtype=np.uint8)
        return self._same[key]


class Residency:
    """What every state graph needs to know of a problem: who reads and makes which tensor, and where."""

    def __init__(self, encoded: Encoded, scheme: Scheme) -> None:
        self.encoded, self.scheme = encoded, scheme
        self.copies = Copies(encoded)
        self.width = 4 if scheme.needs_all else 2
        self._index_tensors()
        homes = len(encoded.homes)
        self._dearest = encoded.move_cost.reshape(-1, homes, homes, 4)[..., :2].max(1)  # by tensor and memory
        home = 1 << np.array(encoded.place_home)
        self._homes_of = [int(np.bitwise_or.reduce(home[allowed], initial=0)) for allowed in encoded.allowed]

    def _index_tensors(self) -> None:
        encoded, index = self.encoded, self.encoded.node_index
        tensors = encoded.problem.tensors
        count = len(encoded.problem.nodes)
        self.readers = [sum(1 << index[name] for name in dict.fromkeys(t.consumers)) for t in tensors]
        self.inputs: list[list[int]] = [[] for _ in range(count)]
        self.outputs: list[list[int]] = [[] for _ in range(count)]
        self.before = [0] * count
        self.after: list[list[int]] = [[] for _ in range(count)]
        for t, tensor in enumerate(tensors):
            consumers = [index[name] for name in dict.fromkeys(tensor.consumers)]
            for consumer in consumers:
                self.inputs[consumer].append(t)
            if tensor.producer is not None:
                producer = index[tensor.producer]
                self.outputs[producer].append(t)
                for consumer in consumers:
                    self.before[consumer] |= 1 << producer
                    self.after[producer].append(consumer)

    def start(self) -> tuple[tuple[int, ...], Bytes, Ints]:
        """Place the graph inputs: the live tensors, their copy states (one row) and the cost row of the start.

        An input that is an output too is delivered at once.
        """
        live, row = [], []
        cost = np.zeros((1, self.width), np.int64)
        for t, tensor in enumerate(self.encoded.problem.tensors):
            if tensor.producer is None:
                copy, paid = self.made(t, None if tensor.source is None else self.encoded.homes.index(tensor.source))
                cost += paid
                if self.readers[t]:
                    live.append(t)
                    row.append(self.copies.same(t, self.useful(t, 0))[copy])
        return tuple(live), np.array([row], dtype=np.uint8), self.scheme.columns(cost, np.zeros(1, bool), None)

    def made(self, t: int, home: int | None) -> tuple[int, Ints]:
        """Return the copy state of a tensor just made in `home`, and the cost of delivering it if it is an output."""
        target = self.encoded.problem.tensors[t].target
        if home is None:
            return self.copies.everywhere, np.zeros(self.width, np.int64)
        copy = self.copies.number[home, 1 << home]
        if target is None:
            return copy, np.zeros(self.width, np.int64)
        wanted = self.encoded.homes.index(target)
        return int(self.copies.after[wanted, copy]), self.copies.fetch(t)[copy, wanted, : self.width]

    def slack(self, t: int, done: int, useful: int) -> Ints:
        """Bound by how much (latency, energy) the tensor's remaining moves differ between any two copy states."""
        homes = [h for h in range(len(self.encoded.homes)) if useful >> h & 1]
        moves = min((self.readers[t] & ~done).bit_count(), len(homes))
        return np.asarray(self._dearest[t, homes].max(0, initial=0) * moves)

    def useful(self, t: int, done: int) -> int:
        """Return the set of memories in which a consumer still to come could want the tensor."""
        left, useful = self.readers[t] & ~done, 0
        while left:
            node = (left & -left).bit_length() - 1
            left &= left - 1
            useful |= self._homes_of[node]
        return useful
