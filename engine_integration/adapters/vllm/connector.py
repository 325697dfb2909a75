"""The class that vLLM loads: its calls, translated for the two halves and back.

--kv-transfer-config '{"kv_connector": "HiCacheConnector",
    "kv_connector_module_path": "hicache_storage.engine_integration.adapters.vllm.connector",
    "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"backend": "file:///mnt/kv"}}'
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from torch import Tensor

from hicache_storage.engine_integration.adapters.vllm.release import check_release

VERSION = check_release()

# vLLM is imported once it is known to have what is used here.
from vllm.distributed.kv_transfer.kv_connector.v1.base import (  # noqa: E402
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)

from hicache_storage.engine_integration.adapters.vllm.deployment import engine_blocks, read_deployment  # noqa: E402
from hicache_storage.engine_integration.adapters.vllm.lookups import Lookups  # noqa: E402
from hicache_storage.engine_integration.adapters.vllm.options import read_options  # noqa: E402
from hicache_storage.engine_integration.adapters.vllm.role import role_of  # noqa: E402
from hicache_storage.engine_integration.adapters.vllm.scheduler_side import Progress, SchedulerSide  # noqa: E402
from hicache_storage.engine_integration.adapters.vllm.scope import Scopes  # noqa: E402
from hicache_storage.engine_integration.adapters.vllm.stats import EventCounts, EventMetrics, FreshCounts  # noqa: E402
from hicache_storage.engine_integration.adapters.vllm.work import StepWork  # noqa: E402
from hicache_storage.engine_integration.adapters.vllm.worker_side import Ended, WorkerSide  # noqa: E402
from hicache_storage.engine_integration.page_store import PageStore  # noqa: E402
from hicache_storage.errors import StoreError  # noqa: E402
from hicache_storage.telemetry import Counters  # noqa: E402

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

_log = logging.getLogger(__name__)


class StepMetadata(KVConnectorMetadata):  # type: ignore[misc] # vLLM ships no types
    """One step's work on its way to the workers."""

    def __init__(self, work: StepWork) -> None:
        self.work = work


class StepReport(KVConnectorWorkerMetadata):  # type: ignore[misc] # vLLM ships no types
    """What workers say of the steps since their last report, all together.

    Attributes:
        postponed: pages that workers had no room for: request id -> the first of them.
        step: number of the last step that is over and that the scheduler waits for.
    """

    def __init__(self, postponed: dict[str, int], step: int | None) -> None:
        self.postponed = postponed
        self.step = step

    def aggregate(self, other: KVConnectorWorkerMetadata) -> StepReport:
        assert isinstance(other, StepReport)  # noqa: S101 - all workers of a deployment run this class
        pages = [self.postponed, other.postponed]
        ids = self.postponed.keys() | other.postponed.keys()
        return StepReport({id_: min(one[id_] for one in pages if id_ in one) for id_ in ids}, self.step)


class HiCacheConnector(KVConnectorBase_V1):  # type: ignore[misc] # vLLM ships no types
    """KV of full pages, kept in a store and shared by all deployments of the model, whatever their TP and PP sizes.

    One instance lives in the scheduler and one in each worker; vLLM calls each on one thread.

    Raises:
        ConfigError: an option is wrong, or vLLM is configured in a way that this connector does not serve.
        LayoutError: the configured grid does not fit the deployment.
    """

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._options = read_options(vllm_config.kv_transfer_config.kv_connector_extra_config)
        deployment = read_deployment(vllm_config, kv_cache_config, self._options)
        self._mine = role_of(deployment, self._options)
        self._counters = Counters()
        self._fresh = FreshCounts(self._counters)
        self._store = self._options.open_store()
        self._scopes = Scopes()
        self._worker: WorkerSide | None = None
        self._ended = Ended(set(), set())
        self._postponed: dict[str, int] = {}
        self._step_over: int | None = None
        self._lookups: Lookups | None = None
        if role is KVConnectorRole.SCHEDULER:
            self._pages = PageStore(
                self._store, self._mine.namespace, self._mine.whole, read_only=True, counters=self._counters
            )
            self._lookups = Lookups(self._pages.lookup_prefix, self._options.lookup_deadline_s, self._counters)
            self._scheduler = SchedulerSide(
                self._lookups,
                self._counters,
                block_tokens=deployment.block_tokens,
                page_tokens=self._mine.whole.shape.page_tokens,
                writes=not self._options.read_only,
            )
        _log.info(
            "vllm.connector vllm=%s role=%s topology=%s page_tokens=%d namespace=%s writes=%s",
            VERSION,
            role.name,
            deployment.topology.name,
            self._mine.whole.shape.page_tokens,
            self._mine.namespace.digest,
            self._mine.writes,
        )

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a page that is not stored is a later miss, nothing more."""
        return False

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, object]) -> bool:
        """Return False: nothing happens within a step. On a GPU vLLM asks before it loads the model.

        Raises:
            ConfigError: an option is wrong.
        """
        read_options(extra_config)
        return False

    def get_kv_connector_stats(self) -> EventCounts | None:
        return self._fresh.take()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, int] | None = None) -> EventCounts:
        return EventCounts(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[object, object],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> EventMetrics:
        return EventMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # Scheduler side.

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        scope = self._scopes.of(request)
        if scope is None:
            self._scheduler.finished(request.request_id)
            return 0, False
        tokens = self._scheduler.match(request.request_id, request.all_token_ids, scope.seed, num_computed_tokens)
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        if num_external_tokens:
            (block_ids,) = blocks.get_block_ids()
            self._scheduler.allocated(request.request_id, block_ids, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepMetadata:
        work = self._scheduler.step(
            _progress(scheduler_output),
            idle=not scheduler_output.total_num_scheduled_tokens,
            # Ours are never part of a step. Another connector's may be, beside ours in a MultiConnector.
            doubtful=scheduler_output.has_sync_kv_loads,
        )
        return StepMetadata(work)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, StepReport):
            self._scheduler.postponed(report.postponed)
            if report.step is not None:
                self._scheduler.step_over(report.step)
        self._scheduler.loads_ended(
            sorted(connector_output.finished_recving or ()), set(connector_output.invalid_block_ids)
        )
        if self._scheduler.nothing_on_its_way:
            self._scheduler.emptied(is_empty=self._empty())

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, None]:  # noqa: ARG002 - vLLM's call
        self._scheduler.finished(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        """Delete the pages of this deployment's namespace, for all who share it; return whether that was possible.

        Done again once the workers have dropped what they had to store: new requests wait for that. If it was not
        possible, nothing is restored or stored until it is: what the store has may be of other weights. A deployment
        that only reads deletes nothing.
        """
        self._scheduler.reset()
        is_empty = self._empty()
        if not is_empty:
            self._scheduler.emptied(is_empty=False)
        return is_empty

    # Worker side.

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        blocks = engine_blocks(self._vllm_config, self._kv_cache_config, kv_caches, self._mine.layout)
        pages = PageStore(
            self._store,
            self._mine.namespace,
            self._mine.layout,
            read_only=not self._mine.writes,
            counters=self._counters,
        )
        self._worker = WorkerSide(
            pages,
            blocks,
            writes=self._mine.writes,
            staging_pages=self._options.staging_pages(pages.layout.page_nbytes, self._step_pages()),
            load_threads=self._options.load_threads,
        )
        for pool in self._worker.pools:
            pool.attach(self._store)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: object) -> None:  # noqa: ARG002 - vLLM's call
        if self._worker is not None:
            self._worker.submit_loads(self._work())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: blocks are loaded before vLLM schedules their request."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Tensor, attn_metadata: AttentionMetadata, **kwargs: object
    ) -> None:
        """Do nothing: a page is stored whole, at the end of the step."""

    def wait_for_save(self) -> None:
        if self._worker is not None:
            work = self._work()
            for request_id, page in self._worker.submit_saves(work).items():
                self._postponed[request_id] = min(page, self._postponed.get(request_id, page))
            self._step_over = work.number if work.number is not None else self._step_over

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:  # noqa: ARG002 - vLLM's call
        if self._worker is None:
            return None, None
        self._ended = self._worker.ended(idle=self._work().idle)
        return None, self._ended.request_ids or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._ended.failed_blocks

    def build_connector_worker_meta(self) -> StepReport | None:
        """Return what is new since the last call.

        With drafts vLLM calls this before `wait_for_save` in the steps that compute: their reports come one step later.
        """
        if not self._postponed and self._step_over is None:
            return None
        report = StepReport(self._postponed, self._step_over)
        self._postponed, self._step_over = {}, None
        return report

    def shutdown(self) -> None:
        if self._lookups is not None:
            self._lookups.close()
        ended = self._worker is None or self._worker.close(self._options.shutdown_deadline_s)
        if ended:
            self._store.close()

    def _empty(self) -> bool:
        if self._options.read_only:
            _log.warning("vllm.reset_refused reason=read_only")
            return False
        try:
            self._pages.clear()
        except StoreError as error:
            _log.warning("vllm.reset_failed error=%s", error)
            return False
        return True

    def _step_pages(self) -> int:
        """Return the most pages that one step of the engine computes."""
        step_tokens: int = self._vllm_config.scheduler_config.max_num_batched_tokens
        return -(-step_tokens // self._mine.whole.shape.page_tokens)

    def _work(self) -> StepWork:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, StepMetadata)  # noqa: S101 - the scheduler runs this class too
        return metadata.work


def _progress(output: SchedulerOutput) -> list[Progress]:
    """Return how far each request gets in the step that *output* describes."""
    scheduled = output.num_scheduled_tokens
    progress = [
        Progress(
            request_id=new.req_id,
            block_ids=new.block_ids[0],
            replaces=True,
            computed_tokens=new.num_computed_tokens + scheduled[new.req_id],
        )
        for new in output.scheduled_new_reqs
    ]
    cached = output.scheduled_cached_reqs
    for at, request_id in enumerate(cached.req_ids):
        blocks = cached.new_block_ids[at]
        computed = cached.num_computed_tokens[at] + scheduled[request_id]
        replaces = request_id in cached.resumed_req_ids
        progress.append(Progress(request_id, blocks[0] if blocks else (), replaces, computed))
    return progress
