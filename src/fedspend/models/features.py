"""Fixed features of images, as the input of a linear head: at small budgets, few dimensions matter
more than a deep model.

Guarantee: a feature vector is a function of its own image and of constants in this file. Nothing is
learned, no statistic is taken across images, and the other images in a call do not change a single
bit; so features cost no privacy and do not appear in the plan.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from fedspend.basics.choices import choose
from fedspend.data.dataset import Features
from fedspend.errors import InvalidInput

BANDS = "gabor-bands"
NAMES = ("gabor", BANDS)

SIDE = 28  # images of another size are resampled to this one
ORIENTATIONS = 8
WAVELENGTHS = (4.0, 8.0)  # pixels
KERNEL = 11
POOL = 5
THUMBNAIL = 7
LENGTH = ORIENTATIONS * len(WAVELENGTHS) * POOL**2 + THUMBNAIL**2

_CHUNK = 64  # always padded to this size: kernels may round differently for another batch size
_FLAT = 1e-3  # avoids dividing by zero for an image of one colour, whose features become zero


def features(name: str, images: Features) -> Features:
    """The features `name` of images (n, channels, height, width): (n, 449) float32.

    `gabor`: the energy of 16 Gabor filters, averaged over a 5x5 grid, and a 7x7 thumbnail; channels
    are averaged first. Energies and thumbnail are each brought to mean 0 and variance 1 within the
    image. `gabor-bands`: the same, but the energies of each wavelength are brought there by
    themselves. Long waves have more energy in every image; that difference carries no label, and a
    clip spends norm on it. With very small budgets this is the better choice.
    """
    choose("features", name, NAMES)
    if images.ndim != 4 or images.size == 0:
        raise InvalidInput(
            f"features {name!r} need images (n, channels, height, width), got shape {images.shape}"
        )
    kernels = gabor_kernels()
    result = torch.empty(len(images), LENGTH)
    with torch.no_grad():
        for start in range(0, len(images), _CHUNK):
            chunk = torch.from_numpy(images[start : start + _CHUNK]).mean(1, keepdim=True)
            count = len(chunk)
            if count < _CHUNK:
                chunk = torch.cat([chunk, chunk.new_zeros(_CHUNK - count, *chunk.shape[1:])])
            bands = len(WAVELENGTHS) if name == BANDS else 1
            result[start : start + count] = _gabor(chunk, kernels, bands)[:count]
    array: Features = result.numpy()
    return array


def gabor_kernels() -> torch.Tensor:
    """Even filters, then odd ones: (32, 1, 11, 11), each with mean 0 and norm 1, so that a flat
    patch has no energy.
    """
    radius = KERNEL // 2
    line = torch.arange(-radius, radius + 1, dtype=torch.float64)
    y, x = torch.meshgrid(line, line, indexing="ij")
    even, odd = [], []
    for wavelength in WAVELENGTHS:
        window = torch.exp(-(x**2 + y**2) / (2 * (wavelength / 2) ** 2))
        for step in range(ORIENTATIONS):
            angle = math.pi * step / ORIENTATIONS
            phase = 2 * math.pi / wavelength * (x * math.cos(angle) + y * math.sin(angle))
            wave = window * torch.cos(phase)
            even.append(wave - window * (wave.sum() / window.sum()))
            odd.append(window * torch.sin(phase))
    bank = torch.stack(even + odd)[:, None]
    return functional.normalize(bank.flatten(1)).reshape(bank.shape).float()


def _gabor(images: torch.Tensor, kernels: torch.Tensor, bands: int) -> torch.Tensor:
    if images.shape[2:] != (SIDE, SIDE):
        images = functional.interpolate(images, (SIDE, SIDE), mode="bilinear", antialias=True)
    even, odd = functional.conv2d(images, kernels, padding=KERNEL // 2).chunk(2, dim=1)
    energy = functional.adaptive_avg_pool2d(torch.sqrt(even**2 + odd**2), POOL).flatten(1)
    thumbnail = functional.adaptive_avg_pool2d(images, THUMBNAIL).flatten(1)
    parts = (*energy.chunk(bands, dim=1), thumbnail)
    return torch.cat([_standardised(part) for part in parts], dim=1)


def _standardised(rows: torch.Tensor) -> torch.Tensor:
    centred = rows - rows.mean(1, keepdim=True)
    return centred / (centred.pow(2).mean(1, keepdim=True).sqrt() + _FLAT)
