"""Plan a fit for devices that are not at hand: which batch, which step, how much memory.

python examples/another_device.py
"""

from __future__ import annotations

from sklearn.datasets import load_digits

from mercer import KernelClassifier, Resource

GIB = 1024**3
DEVICES = [
    Resource(capacity=1e7, memory=1 * GIB, full_rate_rows=64, name="a small board"),
    Resource(capacity=1e9, memory=16 * GIB, full_rate_rows=256, name="a desktop GPU"),
    Resource(capacity=5e9, memory=80 * GIB, full_rate_rows=1024, name="a large GPU"),
]


def main() -> None:
    X, y = load_digits(return_X_y=True)
    model = KernelClassifier("gaussian", bandwidth=24.0, ridge=0.0, random_state=0)
    print("device           batch   eigenvalues levelled   over plain SGD")
    for device in DEVICES:
        plan = model.plan(X, y, resource=device)
        print(
            f"{device.name:15} {plan.batch_size:6,} {plan.preconditioner_rank:22,} "
            f"{plan.acceleration:14.0f} ×"
        )


if __name__ == "__main__":
    main()
