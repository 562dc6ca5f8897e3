from __future__ import annotations

import pytest
import torch
from torch import nn

from secureafl.errors import SettingsError
from secureafl.lab.simulation.models import Block, ResNet20, build


def num_parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_the_papers_network_has_139960_parameters() -> None:
    net = build("cnn", (1, 28, 28), 10)
    assert [sum(p.numel() for p in layer.parameters()) for layer in net.children() if list(layer.parameters())] == [
        30 * 9 + 30,  # 300
        30 * 50 * 9 + 50,  # 13,550
        50 * 5 * 5 * 100 + 100,  # 125,100
        100 * 10 + 10,  # 1,010
    ]
    assert num_parameters(net) == 139_960


def test_other_sizes() -> None:
    assert num_parameters(build("resnet20", (3, 32, 32), 10)) == 269_722
    assert num_parameters(build("small-cnn", (1, 28, 28), 10)) == 14_410
    assert num_parameters(build("mlp", (1, 28, 28), 10)) == 25_450


@pytest.mark.parametrize("architecture", ["cnn", "resnet20", "small-cnn", "mlp"])
@pytest.mark.parametrize("image_shape", [(3, 32, 32), (3, 64, 64), (3, 32, 64), (1, 28, 28)])
@pytest.mark.parametrize("num_outputs", [1, 200])
def test_all_shapes_of_images_fit(architecture: str, image_shape: tuple[int, int, int], num_outputs: int) -> None:
    net = build(architecture, image_shape, num_outputs)
    assert net(torch.zeros(2, *image_shape)).shape == (2, num_outputs)


def test_pooling_before_relu_changes_nothing() -> None:
    x = torch.randn(4, 30, 26, 26, generator=torch.Generator().manual_seed(0), requires_grad=True)
    grads = []
    for layers in ([nn.ReLU(), nn.MaxPool2d(2)], [nn.MaxPool2d(2), nn.ReLU()]):
        out = nn.Sequential(*layers)(x)
        grads.append((out.detach(), *torch.autograd.grad((out**2).sum(), x)))
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


def test_nothing_of_a_resnet_escapes_the_gradient() -> None:
    """Batch normalisation would keep running statistics as buffers."""
    net = ResNet20((3, 32, 32), 10)
    assert list(net.buffers()) == []
    assert sum(isinstance(module, nn.Conv2d) for module in net.modules()) == 19


def test_a_shortcut_skips_pixels_and_pads_channels() -> None:
    block = Block(16, 32)
    for parameter in block.parameters():
        nn.init.zeros_(parameter)
    x = torch.rand(1, 16, 4, 4, generator=torch.Generator().manual_seed(0))
    out = block(x)
    assert torch.equal(out[:, :16], x[:, :, ::2, ::2])
    assert not out[:, 16:].any()


def test_a_character_of_the_last_row_counts_by_its_place_and_an_earlier_one_by_its_row() -> None:
    net = build("char-mlp", (1, 8, 8), 28)
    assert num_parameters(net) == 28 * 28 + (7 + 8) * 28 * 256 + 256 + 256 * 28 + 28  # 115,756
    x = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    outputs = net(x)
    for row in range(8):
        turned, changed = x.clone(), x.clone()
        turned[0, 0, row] = turned[0, 0, row].flip(0)
        changed[0, 0, row, 3] = -changed[0, 0, row, 3]
        assert torch.allclose(net(turned), outputs, atol=1e-6) == (row < 7)
        assert not torch.allclose(net(changed), outputs, atol=1e-6)


def test_mistakes_are_named() -> None:
    with pytest.raises(SettingsError, match="did you mean 'resnet20'"):
        build("resnet-20", (3, 32, 32), 10)
    with pytest.raises(SettingsError, match="at least 10 x 10"):
        build("cnn", (1, 9, 28), 10)
    for image_shape, num_outputs in (((3, 32, 32), 10), ((1, 8, 8), 1)):
        with pytest.raises(SettingsError, match="char-mlp reads windows of text"):
            build("char-mlp", image_shape, num_outputs)


@pytest.mark.parametrize(("num_outputs", "scale"), [(1, 0.25), (2, 1.0)])
def test_blocks_of_a_regression_start_small(num_outputs: int, scale: float) -> None:
    blocks = [module for module in ResNet20((3, 32, 32), num_outputs).modules() if isinstance(module, Block)]
    assert len(blocks) == 9
    assert all((block.norm2.weight == scale).all() for block in blocks)
