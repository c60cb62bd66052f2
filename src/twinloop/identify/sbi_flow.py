"""Train a normalizing flow that maps summaries of a simulation to the posterior of its parameters.

The flow needs the optional packages torch and sbi.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import MissingDependencyError

Array = NDArray[np.float64]

# A small flow with sbi's batch and twice its learning rate: posteriors of a fit are near normal in these coordinates.
_FEATURES, _TRANSFORMS, _BATCH, _RATE, _PATIENCE, _MOST_EPOCHS = 32, 3, 200, 1e-3, 10, 1000


class _NullTracker:
    """Tracker of sbi that stores nothing; by default sbi writes a TensorBoard folder for every training."""

    log_dir = None

    def log_metric(self, name: str, value: float, step: int | None = None) -> None: ...
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None: ...
    def log_params(self, params: dict[str, Any]) -> None: ...
    def add_figure(self, name: str, metric: Any, step: int | None = None) -> None: ...
    def flush(self) -> None: ...


def require_sbi() -> tuple[Any, Any, Any]:
    """Import the optional packages and return ``torch``, and ``NPE`` and ``posterior_nn`` of sbi.

    Raises:
        MissingDependencyError: If torch or sbi is not installed.
    """
    try:
        import torch  # pyright: ignore[reportMissingImports]
        from sbi.inference import NPE  # pyright: ignore[reportMissingImports]
        from sbi.neural_nets import posterior_nn  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        what = f"A posterior by simulation-based inference needs {error.name}, which is not installed."
        raise MissingDependencyError(what, remedy="pip install 'twinloop[sbi]'") from error
    return torch, NPE, posterior_nn


def train_posterior(theta: Array, x: Array, *, seed: int) -> Callable[[Array, int, int], Array]:
    """Train a neural posterior estimator in sbi, a masked autoregressive flow (Papamakarios et al., NeurIPS 2017).

    Args:
        theta: Parameters of n simulations, standard normal under the prior, ``(n, p)``.
        x: Summaries of n simulations, k each, ``(n, k)``.
        seed: Seed of the weights and batches; equal seeds give equal results on the same machine.

    Returns:
        A function that draws from posteriors. Its arguments are summaries of b data sets ``(b, k)``, the number of
        draws, and a seed. It returns parameters ``(draws, b, p)``.
    """
    torch, npe, builder = require_sbi()
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)  # small layers gain nothing from threads, and one thread sums in a fixed order
        try:
            p = theta.shape[1]
            prior = torch.distributions.MultivariateNormal(torch.zeros(p), torch.eye(p))
            network = builder(model="maf", hidden_features=_FEATURES, num_transforms=_TRANSFORMS)
            training = npe(prior=prior, density_estimator=network, tracker=_NullTracker(), show_progress_bars=False)
            training.append_simulations(torch.as_tensor(theta).float(), torch.as_tensor(x).float())
            with contextlib.redirect_stdout(io.StringIO()):  # sbi prints its convergence
                flow = training.train(
                    training_batch_size=_BATCH,
                    learning_rate=_RATE,
                    stop_after_epochs=_PATIENCE,
                    max_num_epochs=_MOST_EPOCHS,
                )
        finally:
            torch.set_num_threads(threads)

    def draws(given: Array, count: int, number: int) -> Array:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(number)
            made = flow.sample((count,), condition=torch.as_tensor(given).float())
        return made.numpy().astype(np.float64)

    return draws
