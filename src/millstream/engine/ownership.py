"""Whose a checkpoint is, and which epoch a batch belongs to. The driver asks before everything that it writes.

Rules
1. Tokens grow. A run that finds a newer one has been replaced: it leaves a mark, writes nothing more, and ends with Fenced.
2. An epoch that a run before this one has committed stands, also if that run was about to end; one by a newer run means that we are replaced.
3. Before anything is called damaged or missing, a look whether somebody else has the checkpoint now, or it has been deleted.
4. The source's log numbers batches; epochs are numbered by the manifests. The two differ by the epochs that were run outside the query, to drain or to
   settle. A manifest says how many there were so far, so a batch finds its epoch.
5. Behind a drain no batch may bring anything.
"""

from __future__ import annotations

from millstream.core.guards import Guards
from millstream.engine.plan import Reading
from millstream.errors import CheckpointError, DamageError, Fenced
from millstream.state.fencing import refuse, run_number
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog


class Ownership:
    """One run's claim on a checkpoint."""

    def __init__(self, log: ManifestLog, token: str, guards: Guards, latest: Manifest | None) -> None:
        self.log, self.token, self._guards = log, token, guards
        self._url = log.storage.url
        self._started_at = -1 if latest is None else latest.epoch

    # --- rules 1 to 3

    def is_replaced(self) -> bool:
        """Whether a newer run has begun; leaves a mark if so."""
        if not self._guards.tokens or not self.log.runs.superseded(self.token):
            return False
        refuse(self.log.storage, self.token)
        return True

    def check(self, epoch: int) -> None:
        """Before a write for an epoch: raises Fenced if this run has been replaced."""
        if self.is_replaced():
            raise self.fenced(epoch)

    def check_commit(self, epoch: int) -> None:
        """Before the commit: the same, and no manifest is put where a checkpoint has been."""
        self.check(epoch)
        if not self.log.runs.is_there(self.token):
            raise CheckpointError(f"{self._url} is no longer what it was when this run began")  # `explain` says more

    def fenced(self, epoch: int) -> Fenced:
        """What a run says that has been replaced."""
        owner = self.log.runs.last_claim()
        who = str(owner) if owner is not None and owner.token != self.token else f"a newer run has begun, or has committed epoch {epoch}"
        return Fenced(
            f"another driver owns {self._url} now: {who}. This one (run {self.token}) has stopped. Nothing of it was committed twice. If both were started on "
            f"purpose, nothing is to be done; else see that only one is started."
        )

    def explain(self, error: BaseException, epoch: int) -> None:
        """Raises what is behind an error, if that is known: a newer run, or a checkpoint that has been deleted."""
        if self.is_replaced():
            raise self.fenced(epoch) from error
        if not self.log.runs.has_claim(self.token):
            raise CheckpointError(
                f"{self._url} has been deleted or moved while this run was at work on it. It has stopped. Put the directory back as it was and "
                f"run again, or start with a new checkpoint."
            ) from error

    def adoptable(self, epoch: int) -> Manifest:
        """An epoch that somebody else has committed. Rule 2."""
        found = self.log.read(epoch)
        if run_number(found.token) >= run_number(self.token):
            raise self.fenced(epoch)
        return found

    # --- rules 4 and 5

    def epoch_of(self, batch: int, latest: Manifest | None) -> int | None:
        """The epoch of a batch: the next one, or that of a batch which is committed and which Spark asks for again. None if that was so long ago that
        its manifest is no longer kept: everything after it has been published since, and so has it."""
        if latest is None or not latest.outside:
            return batch
        if batch > latest.last_batch:  # behind a drain numbers may be missing: nothing was in them
            return latest.epoch + (1 if latest.ended is not None else batch - latest.last_batch)
        for epoch in range(batch + latest.outside, batch - 1, -1):
            if self.log.exists(epoch) and self.log.read(epoch).batch == batch:
                return epoch
        return None

    def nothing_to_do(self, epoch: int | None, ranges: Reading, latest: Manifest | None) -> bool:
        """Whether there is nothing to do for a batch: it was committed so long ago that nobody keeps its manifest. Input behind a drain is refused. A batch
        that has a manifest of its own is published again."""
        if latest is not None and latest.ended is not None and epoch is not None and epoch > latest.epoch and ranges.may_have_rows:
            raise CheckpointError(
                f"{self._url} was drained (from epoch {latest.ended} on): its event time has ended for good, and there is new input. "
                f"Use a new checkpoint. If more input may follow, run that one with drain=False (--no-drain on the command line) from the start."
            )
        return epoch is None

    def committed(self, epoch: int, ranges: Reading, latest: Manifest | None) -> Manifest | None:
        """The manifest of an epoch, if it is committed."""
        self.check(epoch)
        last = -1 if latest is None else latest.epoch
        if epoch > last + 1:
            if max(self.log.epochs(), default=-1) > last:
                raise self.fenced(last + 1)
            raise CheckpointError(
                f"Spark asks for epoch {epoch}, but the last manifest in {self._url} is {last}: manifests are missing, or "
                f"Spark's own checkpoint belongs to something else. Restore both from the same copy, or start with a new checkpoint."
            )
        if epoch == last + 1:
            if not self.log.exists(epoch) or not self._guards.exclusive:
                return None
            manifest = self.adoptable(epoch)
        else:
            manifest = latest if latest is not None and epoch == last else self.log.read(epoch)
        if epoch > self._started_at and run_number(manifest.token) > run_number(self.token):
            raise self.fenced(epoch)
        if manifest.offsets is not None and ranges.digest not in (None, manifest.offsets):
            raise DamageError(
                f"epoch {epoch} of {self._url} was committed with other source offsets than Spark's checkpoint has now. The offsets of "
                f"Spark and the manifests do not belong together: restore both from the same copy, or start with a new checkpoint."
            )
        return manifest
