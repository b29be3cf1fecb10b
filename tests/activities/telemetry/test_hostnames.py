"""Which node a metric's labels speak of, in all the ways in which exporters and operators name hosts."""

from __future__ import annotations

import pytest

from activities.telemetry.hostnames import HostNames, bare_host

NODES = ("n01", "n02", "gpu-a.east", "gpu-a.west", "gpu-b.east", "10.0.0.9", "12")


@pytest.mark.parametrize(
    ("value", "host"),
    [
        ("n01:9100", "n01"),
        ("N01.Example.ORG:9400", "n01.example.org"),
        ("n01.example.org.", "n01.example.org"),
        ("10.0.0.5:9100", "10.0.0.5"),
        ("[2001:db8::1]:9100", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("http://n01:9400/metrics", "n01"),
        ("n01", "n01"),
        ("", ""),
        (":9100", ""),
    ],
)
def test_the_host_is_what_is_left_without_port_and_dressing(value: str, host: str) -> None:
    assert bare_host(value) == host


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        ({"Hostname": "n01"}, "n01"),
        ({"hostname": "n01"}, "n01"),
        ({"instance": "n01:9100"}, "n01"),
        ({"instance": "N01.cluster.example:9400"}, "n01"),
        ({"node": "n02", "instance": "10.0.0.5:9100"}, "n02"),
        ({"nodename": "n02.example"}, "n02"),
        ({"host": "n02"}, "n02"),
        ({"Hostname": "f3a9c1d2e4b5", "instance": "n02:9400"}, "n02"),  # an exporter in a container
        ({"Hostname": "n01", "instance": "collector:9400"}, "n01"),
        ({"Hostname": "n01", "instance": "n02:9400"}, "n01"),  # scraped by way of another node
        ({"Hostname": "", "instance": "n02:9400"}, "n02"),
        ({"instance": "gpu-a.east:9100"}, "gpu-a.east"),
        ({"instance": "gpu-a:9100"}, None),  # there are two
        ({"instance": "gpu-a.north:9100"}, None),
        ({"instance": "gpu-b:9100"}, "gpu-b.east"),
        ({"instance": "gpu-b.south:9100"}, None),  # another machine of that name
        ({"instance": "10.0.0.5:9100"}, None),
        ({"instance": "10.0.0.9:9100"}, "10.0.0.9"),
        ({"instance": "10.0.0.5"}, None),
        ({"instance": "12.0.0.1:9100"}, None),
        ({"instance": "n03:9100"}, None),
        ({"instance": "n0:9100"}, None),
        ({"pod": "n01"}, None),
        ({}, None),
    ],
)
def test_labels_lead_to_the_node_or_to_none(labels: dict[str, str], node: str | None) -> None:
    assert HostNames(NODES).node_of(labels) == node


def test_an_address_is_the_host_that_names_itself_there() -> None:
    names = HostNames(NODES, names={"10.0.0.5:9100": "n01.example", "10.0.0.6:9100": "stranger"})
    assert names.node_of({"instance": "10.0.0.5:9400"}) == "n01"
    assert names.node_of({"instance": "10.0.0.6:9400"}) is None


def test_a_nodes_own_name_is_never_renamed() -> None:
    assert HostNames(NODES, names={"n01:9100": "n02"}).node_of({"instance": "n01:9100"}) == "n01"


def test_the_order_of_labels_is_the_sites() -> None:
    labels = {"Hostname": "n01", "machine": "n02"}
    assert HostNames(NODES, labels=("machine", "Hostname")).node_of(labels) == "n02"
