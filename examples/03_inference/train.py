#!/usr/bin/env python3
"""Trains the digit classifier of this example and writes digits.safetensors.

Run once, by hand; its result is in the repository:  python3 train.py   (needs numpy, takes seconds)

Input: digits.csv, one image per line: 64 pixels of 0..16, then the label. The first 1,347 images train, the last 450
test. The set is ordered by writer, so most of the test images come from hands that the network has not seen, and the
accuracy is lower than after a shuffle.
"""
import json
import pathlib
import struct

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
TEST_IMAGES = 450
PIXEL_MAX = 16
SIZES = [64, 128, 64, 10]
EPOCHS = 120
BATCH = 32
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-4
SEED = 7


def load():
    table = np.loadtxt(HERE / "digits.csv", delimiter=",", dtype=np.int64)
    assert table.shape == (1797, 65) and table[:, :64].max() == PIXEL_MAX
    return (table[:, :64] / PIXEL_MAX).astype(np.float32), table[:, 64]


def forward(params, x):
    """Returns the activations of every layer; the last are the scores (no softmax)."""
    activations = [x]
    for i, (weight, bias) in enumerate(params):
        x = x @ weight.T + bias
        if i + 1 < len(params):
            x = np.maximum(x, 0)
        activations.append(x)
    return activations


def gradients(params, x, labels):
    """Of the mean cross-entropy after a softmax."""
    activations = forward(params, x)
    scores = activations[-1]
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1
    delta = p / np.float32(len(labels))
    result = []
    for i in reversed(range(len(params))):
        result.append((delta.T @ activations[i], delta.sum(axis=0)))
        if i:
            delta = (delta @ params[i][0]) * (activations[i] > 0)
    return result[::-1]


def jitter(rng, x):
    """Moves every image by at most one pixel each way: more hands than the set has."""
    images = np.pad(x.reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    shifts = rng.choice(3, size=(len(x), 2), p=[0.2, 0.6, 0.2])
    return np.stack([image[r:r + 8, c:c + 8].reshape(64) for image, (r, c) in zip(images, shifts)])


def train(x, labels):
    rng = np.random.default_rng(SEED)
    params = []
    for fan_in, fan_out in zip(SIZES, SIZES[1:]):
        weight = rng.normal(0, np.sqrt(2 / fan_in), (fan_out, fan_in)).astype(np.float32)
        params.append((weight, np.zeros(fan_out, np.float32)))
    mean = [[np.zeros_like(a) for a in layer] for layer in params]
    variance = [[np.zeros_like(a) for a in layer] for layer in params]
    step = 0
    for epoch in range(EPOCHS):
        rate = LEARNING_RATE * 0.5 * (1 + np.cos(np.pi * epoch / EPOCHS))
        order = rng.permutation(len(x))
        for begin in range(0, len(x), BATCH):
            batch = order[begin:begin + BATCH]
            step += 1
            for l, grads in enumerate(gradients(params, jitter(rng, x[batch]), labels[batch])):
                for k, g in enumerate(grads):  # Adam, with decoupled weight decay.
                    mean[l][k] += 0.1 * (g - mean[l][k])
                    variance[l][k] += 0.001 * (g * g - variance[l][k])
                    m = mean[l][k] / (1 - 0.9**step)
                    v = variance[l][k] / (1 - 0.999**step)
                    update = m / (np.sqrt(v) + 1e-8) + WEIGHT_DECAY * params[l][k]
                    params[l][k][...] -= (rate * update).astype(np.float32)
    return params


def write_safetensors(path, tensors, metadata):
    """8 bytes of header length, the JSON header padded with spaces, the data; all little-endian."""
    header, data = {"__metadata__": metadata}, b""
    for name, array in tensors.items():
        assert array.dtype == np.float32
        raw = np.ascontiguousarray(array).astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)  # So that the data begins on a cache line.
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main():
    x, labels = load()
    split = len(x) - TEST_IMAGES
    params = train(x[:split], labels[:split])
    scores = forward(params, x)[-1]
    right = scores.argmax(axis=1) == labels
    two = np.sort(scores[split:], axis=1)[:, -2:]
    print(f"train: {right[:split].sum()} of {split} right ({right[:split].mean():.2%})")
    print(f"test:  {right[split:].sum()} of {TEST_IMAGES} right ({right[split:].mean():.2%})")
    print(f"smallest gap between the two best scores of a test image: {(two[:, 1] - two[:, 0]).min():.2g}")
    tensors = {}
    for i, (weight, bias) in enumerate(params):
        tensors[f"layers.{i}.weight"] = weight
        tensors[f"layers.{i}.bias"] = bias
    metadata = {
        "source": "trained by train.py on digits.csv (UCI Optical Recognition of Handwritten Digits, CC BY 4.0)",
        "test_images": str(TEST_IMAGES),
        "test_right": str(int(right[split:].sum())),
    }
    write_safetensors(HERE / "digits.safetensors", tensors, metadata)


if __name__ == "__main__":
    main()
