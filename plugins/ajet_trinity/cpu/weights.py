"""SynchronizersWeights: new weights for an engine on a CPU, from Trinity's synchronizer, without NCCL.

Invariant: each worker reads all weights itself, as trained.
"""

from __future__ import annotations

from typing import Any

from trinity.common.models.vllm_extension import CheckpointWeightTransferInitInfo, CheckpointWeightTransferUpdateInfo
from vllm.distributed.weight_transfer.base import WeightTransferEngine


class SynchronizersWeights(WeightTransferEngine):
    """Loads new weights into an engine on a CPU, for Trinity's transfer methods `memory` and `checkpoint`."""

    init_info_cls = CheckpointWeightTransferInitInfo
    update_info_cls = CheckpointWeightTransferUpdateInfo

    def init_transfer_engine(self, init_info: Any) -> None:
        """Store the address of the synchronizer."""
        self._info = init_info

    def start_weight_update(self) -> None:
        """Do nothing: the update needs no preparation."""

    def update_weights(self, update_info: Any) -> None:
        """Receive the weights. Unlike vLLM's method, do not wait for an accelerator."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Any) -> None:
        """Read the new weights from a checkpoint folder or from Trinity's synchronizer, and load them."""
        if self._info.sync_method == "checkpoint":
            from trinity.common.models.utils import load_state_dict_iterator

            self.model.load_weights(load_state_dict_iterator(checkpoint_dir=update_info.checkpoint_path))
            return
        import ray
        from trinity.manager.synchronizer import Synchronizer

        synchronizer = Synchronizer.get_actor(namespace=self._info.namespace)
        tensors = synchronizer.get_model_state_dict_iterator.remote()
        self.model.load_weights(ray.get(tensor) for tensor in tensors)

    def finish_weight_update(self) -> None:
        """Do nothing, because all weights are already loaded."""

    def shutdown(self) -> None:
        """Do nothing, because no resource is open."""
