from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

from conftest import small_network
from erpcnet.config import Config, load_config
from erpcnet.data import ZeroShotDataset
from erpcnet.errors import InputError
from erpcnet.model import ERPCNet, Variant
from erpcnet.model.heads import AttentionJoint
from erpcnet.model.walk import PolicyOrder, RandomOrder, walk
from erpcnet.pipeline import create_network, open_workshop, train_localities, train_network, train_policy, walk_test
from erpcnet.recording import WARMING, Recorded
from erpcnet.training import LocalityTable, Log, Stage2Settings, TableSource, train_stage2
from erpcnet.training.averaging import AveragedWeights
from erpcnet.training.settings import Stage1Settings
from erpcnet.training.stage1 import _optimizer, _schedule, random_cells
from erpcnet.training.stage2 import PolicyTraining, open_source


def test_random_cells_never_repeat_within_an_image() -> None:
    cells = random_cells(200, 16, 6, torch.Generator().manual_seed(0))
    assert all(len(set(row.tolist())) == 6 for row in cells)
    assert cells.flatten().bincount(minlength=16).float().std() < 20  # all cells about equally often (75)


def test_same_seed_same_weights_and_another_seed_others(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    def weights(seed: int) -> dict[str, torch.Tensor]:
        shop = open_workshop(replace(tiny_config, seed=seed), dataset)
        return train_network(shop, dataset, Log()).state_dict()

    first, second, other = weights(0), weights(0), weights(1)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["policy.actor.weight"], other["policy.actor.weight"])


def test_each_stage_leaves_the_other_stages_weights_alone(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    shop = open_workshop(tiny_config, dataset)
    start = create_network(tiny_config, len(dataset.attribute_names)).state_dict()
    network = train_localities(shop, dataset, Log())
    middle = {name: value.clone() for name, value in network.state_dict().items()}
    train_policy(shop, network, dataset, Log())
    end = network.state_dict()
    for name in start:
        if name.startswith("policy."):
            assert torch.equal(start[name], middle[name]), name
        else:
            assert torch.equal(middle[name], end[name]), name
    assert not torch.equal(start["backbone.trunk.0.0.weight"], middle["backbone.trunk.0.0.weight"])
    assert not torch.equal(middle["policy.actor.weight"], end["policy.actor.weight"])


def test_the_backbone_and_its_copy_get_their_share_of_the_rate() -> None:
    network = small_network("erpcnet")
    rest, pretrained = _optimizer(network, Stage1Settings(lr=0.5, backbone_lr=0.1)).param_groups
    assert (rest["lr"], pretrained["lr"]) == (0.5, 0.05)
    slow = {id(parameter) for parameter in pretrained["params"]}
    for name, parameter in network.named_parameters():
        assert (id(parameter) in slow) == name.startswith(("backbone.", "local.extractor.")), name
    trained = [id(parameter) for group in (rest, pretrained) for parameter in group["params"]]
    assert sorted(trained) == sorted(id(parameter) for parameter in network.stage1_parameters())


def test_cosines_are_taken_from_the_mean_of_the_seen_classes(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    config = replace(tiny_config, variant="globalnet", model=replace(tiny_config.model, centred=True))
    network = train_localities(open_workshop(config, dataset), dataset, Log())
    expected = torch.from_numpy(dataset.unit_attributes[dataset.seen].mean(axis=0))
    torch.testing.assert_close(network.global_fit.centre, expected)


def test_what_is_remembered_is_the_mean_direction_of_each_seen_classs_training_images(
    tiny_config: Config, dataset: ZeroShotDataset
) -> None:
    config = replace(tiny_config, variant="globalnet", model=replace(tiny_config.model, attraction=0.3))
    shop = open_workshop(config, dataset)
    network = train_localities(shop, dataset, Log())
    assert network.prototypes.shape == (len(dataset.seen), len(dataset.attribute_names))
    with torch.no_grad():
        for prototype, number in zip(network.prototypes, dataset.seen, strict=True):
            rows = dataset.train[dataset.labels[dataset.train] == number]
            said = [network.glance(next(shop.feed.plain(rows[i : i + 1], 1)).images) for i in range(len(rows))]
            expected = torch.stack([own.attributes[0] / own.attributes[0].norm() for own in said]).mean(dim=0)
            torch.testing.assert_close(prototype, expected, atol=1e-4, rtol=1e-3)


def _planted(dataset: ZeroShotDataset) -> LocalityTable:
    """Localities of which one in each image, told by its descriptor, shows the true class; the rest show nothing."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.from_numpy(dataset.train)
    count, channels = len(rows), 128
    telling = torch.randint(16, (count,), generator=generator)
    descriptors = torch.randn(count, 16, 72, generator=generator)
    descriptors[torch.arange(count), telling, 0] = 8.0
    localities = torch.zeros(count, 16, channels)
    phi = torch.from_numpy(dataset.unit_attributes[dataset.labels[dataset.train]])
    localities[torch.arange(count), telling, : phi.shape[1]] = phi * 10
    return LocalityTable(
        torch.zeros(count, channels),
        torch.zeros(count, phi.shape[1]),
        descriptors,
        torch.ones(count, 16),
        localities,
        rows,
    )


def _reader(attributes: int) -> ERPCNet:
    """A network that believes what `_planted` localities show."""
    network = small_network("rpcnet", attributes=attributes)
    assert isinstance(network.joint, AttentionJoint)
    with torch.no_grad():
        for layer in (network.joint.of_global, network.joint.of_local, network.joint.trust):
            layer.weight.zero_()
            layer.bias.zero_()
        network.joint.of_local.weight[:, :attributes] = torch.eye(attributes)
        assert network.policy is not None
        for parameter in network.policy.actor.parameters():
            parameter.zero_()  # it prefers nothing yet
    return network


def test_stage_two_learns_to_look_where_the_evidence_is(dataset: ZeroShotDataset) -> None:
    network = _reader(len(dataset.attribute_names))
    table = _planted(dataset)
    settings = Stage2Settings(epochs=60, batch_size=18, views=1, temperature=1.0, lr=3e-3)
    train_stage2(network, TableSource(table, dataset, views=1), settings, seed=0, log=Log())
    everything = table.take(torch.arange(len(table)))
    with torch.inference_mode():
        assert network.policy is not None
        learned = walk(network, everything, PolicyOrder(network.policy)).cells[:, 0]
        chance = walk(network, everything, RandomOrder(0)).cells[:, 0]
    telling = table.descriptors[..., 0].argmax(dim=1)
    assert (learned == telling).float().mean() > 0.8
    assert (chance == telling).float().mean() < 0.3


@pytest.mark.gpu
def test_recorded_walks_are_those_that_are_not_recorded(dataset: ZeroShotDataset) -> None:
    planted = vars(_planted(dataset)).items()
    parts: dict[str, Any] = {key: own.cuda() if isinstance(own, torch.Tensor) else own for key, own in planted}
    table = LocalityTable(**parts)
    found = []
    for looks_up in (False, True):
        network = _reader(len(dataset.attribute_names)).cuda()
        source = TableSource(table, dataset, views=1)
        source.looks_up = looks_up
        training = PolicyTraining(network, source, Stage2Settings(batch_size=18, views=1), seed=0)
        rounds = []
        for _ in range(WARMING + 3):
            played = training.play(training.draw())
            rounds.append((played.episodes.cells.clone(), played.episodes.advantages.clone(), played.watched.clone()))
        found.append(rounds)
        assert not looks_up or (isinstance(training._round, Recorded) and training._round.recorded)
    assert len({tuple(cells.flatten().tolist()) for cells, _, _ in found[1]}) == WARMING + 3  # every walk is another
    for plain, recorded in zip(*found, strict=True):
        assert torch.equal(plain[0], recorded[0])
        torch.testing.assert_close(recorded[1:], plain[1:], rtol=1e-3, atol=1e-3)


def test_tables_and_the_direct_way_give_the_same_policy(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    def trained(localities: Literal["table", "direct"]) -> dict[str, torch.Tensor]:
        stage2 = replace(tiny_config.stage2, views=1, localities=localities, play_size=9)
        # Without beta, which may jump where rounding moves a value across the edge of a bin.
        policy = replace(tiny_config.model.policy, sees_cells=False)
        config = replace(tiny_config, variant="rpcnet", model=replace(tiny_config.model, policy=policy), stage2=stage2)
        shop = open_workshop(config, dataset)
        network = create_network(shop.config, len(dataset.attribute_names)).eval()
        train_policy(shop, network, dataset, Log())
        assert network.policy is not None
        return network.policy.state_dict()

    table, direct = trained("table"), trained("direct")
    start = create_network(tiny_config, len(dataset.attribute_names)).policy
    assert start is not None
    kept = {name: value for name, value in start.state_dict().items() if name in table}
    moved = sum(float((table[name] - value).abs().sum()) for name, value in kept.items())
    apart = sum(float((table[name] - direct[name]).abs().sum()) for name in table)
    assert apart < 1e-3 * moved  # sums in another order, nothing else


def test_playing_the_direct_way_keeps_nothing_to_differentiate(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    config = replace(tiny_config, stage2=replace(tiny_config.stage2, localities="direct"))
    shop = open_workshop(config, dataset)
    network = create_network(config, len(dataset.attribute_names)).requires_grad_(True)
    source = open_source(network, dataset, shop.feed, config.stage2, seed=0)
    training = PolicyTraining(network, source, config.stage2, seed=0)
    found = training.play(training.draw())
    # A graph would hold every map of every image until the epoch's end.
    assert not any(value.requires_grad for value in (*vars(found.episodes).values(), found.watched))


def test_hardnet_trains_both_stages_and_walks(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    config = replace(tiny_config, variant="hardnet")
    shop = open_workshop(config, dataset)
    network = train_network(shop, dataset, Log())
    walks = walk_test(shop, network, dataset)
    assert walks.seen is not None
    assert len(walks.seen.cells) == len(dataset.test_seen)
    assert len(walks.unseen.cells) == len(dataset.test_unseen)
    assert all(len(set(row.tolist())) == network.steps for row in walks.unseen.cells)


def test_an_ending_at_sigma_needs_sigma_before_anything_is_trained() -> None:
    with pytest.raises(InputError, match=r"set --model\.sigma"):
        load_config("creatures", stage2={"ending": "paper"})
    assert load_config("creatures", stage2={"ending": "paper"}, variant="pcnet").stage2.ending == "paper"


@pytest.mark.parametrize(("least", "batches", "passes"), [(0, 1, 3), (3, 1, 3), (60, 1, 60), (60, 7, 9), (60, 100, 3)])
def test_small_datasets_are_passed_over_until_there_were_steps_enough(least: int, batches: int, passes: int) -> None:
    settings = Stage1Settings(epochs=3, least_steps=least)
    assert settings.passes(batches) == passes


def test_stage1_takes_the_steps_it_was_asked_for(
    tiny_config: Config, dataset: ZeroShotDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(AveragedWeights, "update", lambda _self, _network: taken.append(1))
    config = replace(tiny_config, variant="globalnet", stage1=replace(tiny_config.stage1, least_steps=5, batch_size=16))
    train_localities(open_workshop(config, dataset), dataset, Log())
    batches = len(dataset.train) // 16
    assert len(taken) == batches * -(-5 // batches) > batches


def test_frozen_norms_keep_their_statistics_and_the_kernels_own_do_not(
    tiny_config: Config, dataset: ZeroShotDataset
) -> None:
    config = replace(tiny_config, stage1=replace(tiny_config.stage1, freeze_norms=True))
    start = create_network(config, len(dataset.attribute_names)).state_dict()
    end = train_localities(open_workshop(config, dataset), dataset, Log()).state_dict()
    changed = {name for name in start if name.endswith("running_mean") and not torch.equal(start[name], end[name])}
    assert changed == {name for name in start if name.endswith("running_mean") and name.startswith("local.partial.")}
    assert not torch.equal(start["backbone.last.0.residual.0.weight"], end["backbone.last.0.residual.0.weight"])


def test_what_is_early_stays_as_it_was_pretrained(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    config = replace(tiny_config, stage1=replace(tiny_config.stage1, freeze_early=True))
    start = create_network(config, len(dataset.attribute_names)).state_dict()
    network = train_localities(open_workshop(config, dataset), dataset, Log())
    end = network.state_dict()
    same = {name for name in start if name.startswith("backbone.") and torch.equal(start[name], end[name])}
    # The small backbone's trunk: stem, layer1 (both finer than e^{n-1}) and layer2, which computes it.
    early = {name for name in start if name.startswith(("backbone.trunk.0.", "backbone.trunk.1."))}
    assert early <= same
    assert "backbone.trunk.2.residual.0.weight" not in same
    assert "backbone.trunk.2.residual.1.running_mean" not in same
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_a_separate_global_subnet_learns_what_globalnet_does(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    def trained(variant: Variant, separate: bool) -> dict[str, torch.Tensor]:
        config = replace(tiny_config, variant=variant, stage1=replace(tiny_config.stage1, separate=separate))
        return train_localities(open_workshop(config, dataset), dataset, Log()).state_dict()

    alone, beside, together = trained("globalnet", False), trained("pcnet", True), trained("pcnet", False)
    for name, value in alone.items():
        torch.testing.assert_close(beside[name], value)
    assert not torch.allclose(together["global_predictor.0.weight"], alone["global_predictor.0.weight"])


@pytest.mark.parametrize(("batches", "rising"), [(1, 20), (110, 110)])
def test_a_constant_rate_rises_over_an_epoch_or_twenty_steps(batches: int, rising: int) -> None:
    settings = Stage1Settings(lr=0.5, warmup_epochs=1.0)
    optimizer = _optimizer(small_network("pcnet"), settings)
    schedule = _schedule(optimizer, settings, batches)
    rates = []
    for _ in range(rising + 5):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:rising] == pytest.approx([0.5 * (step + 1) / rising for step in range(rising)])
    assert rates[rising:] == [0.5] * 5
