"""What one process of a vLLM deployment has to do with a store: integers and names, no engine."""

from __future__ import annotations

from dataclasses import dataclass

from hicache_storage.engine_integration.adapters.vllm.options import VllmOptions
from hicache_storage.errors import ConfigError
from hicache_storage.layout import KVShape, Namespace, Shard, ShardLayout, Topology, Variant, plan_grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A vLLM deployment as one of its processes sees it.

    Attributes:
        model_id: the model's name, as the operator gave it to vLLM.
        variant: everything else that makes KV of this model differ.
        shape: KV of the whole model, with vLLM's block as the page.
        topology: tensor and pipeline parallel sizes, with the layers of each stage.
        tp_rank: of this worker; 0 in the scheduler.
        pp_rank: of this worker; 0 in the scheduler.
    """

    model_id: str
    variant: Variant
    shape: KVShape
    topology: Topology
    tp_rank: int
    pp_rank: int

    @property
    def block_tokens(self) -> int:
        return self.shape.page_tokens


@dataclass(frozen=True, slots=True)
class Role:
    """What the process has to do with a store.

    Attributes:
        whole: the page of the whole model; the scheduler asks for all of its objects.
        layout: the part of it that this worker holds.
        writes: this worker stores its part.
    """

    namespace: Namespace
    whole: ShardLayout
    layout: ShardLayout
    writes: bool


def role_of(deployment: Deployment, options: VllmOptions) -> Role:
    """Return the role of one process. All processes of a deployment come to the same namespace and grid.

    Raises:
        ConfigError: the page is no multiple of vLLM's block.
        LayoutError: a topology of the fleet cannot run the model, or the configured grid does not fit it.
    """
    shape, topology = _with_pages(deployment, options), deployment.topology
    plan = plan_grid(
        shape,
        [topology, *options.fleet],
        layer_partition=options.layer_partition,
        head_partition=options.head_partition,
    )
    shard = topology.shard(shape, tp_rank=deployment.tp_rank, pp_rank=deployment.pp_rank)
    everything = Shard(range(shape.num_layers), range(shape.num_kv_heads))
    elected = topology.is_writer(shape, tp_rank=deployment.tp_rank)
    return Role(
        namespace=Namespace.of(
            model_id=options.model_id or deployment.model_id, shape=shape, grid=plan.grid, variant=deployment.variant
        ),
        whole=ShardLayout(shape, plan.grid, everything),
        layout=ShardLayout(shape, plan.grid, shard),
        writes=elected and plan.members[0].can_write and not options.read_only,
    )


def _with_pages(deployment: Deployment, options: VllmOptions) -> KVShape:
    shape, block = deployment.shape, deployment.block_tokens
    page_tokens = options.page_tokens or block
    if page_tokens % block:
        raise ConfigError(f"vllm option page_tokens = {page_tokens} is no multiple of vLLM's block of {block} tokens")
    if shape.is_mla:
        return KVShape.mla(
            num_layers=shape.num_layers, latent_dim=shape.head_dim, dtype=shape.dtype, page_tokens=page_tokens
        )
    return KVShape.mha(
        num_layers=shape.num_layers,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        v_head_dim=shape.v_head_dim,
        dtype=shape.dtype,
        page_tokens=page_tokens,
    )
