"""A trained model as a layer of PyTorch: find the input that the model likes best, by gradient ascent.

python examples/torch_layer.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from mercer import KernelClassifier

STEPS = 60
SHADES = " .:-=+*#%@"


def main() -> None:
    X, y = load_digits(return_X_y=True)
    model = KernelClassifier("gaussian", bandwidth=24.0, ridge=0.01, random_state=0).fit(X, y)
    module = model.to_torch()

    image = torch.full((1, 64), 8.0, dtype=torch.float64, requires_grad=True)
    ascent = torch.optim.Adam([image], lr=0.5)
    for _ in range(STEPS):
        ascent.zero_grad()
        decisions = module(image)  # (1, 10)
        (-decisions[0, 3]).backward()
        ascent.step()
        image.data.clamp_(0, 16)

    print("The image that is most of all a 3:")
    for row in image.detach().reshape(8, 8):
        print("  " + "".join(2 * SHADES[int(value / 16 * 9)] for value in row.tolist()))
    print(f"The model says {model.predict(image.detach().numpy())[0]}.")


if __name__ == "__main__":
    main()
