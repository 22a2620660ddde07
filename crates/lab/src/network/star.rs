//! Many hosts around a router. Each host has one link, which all of its traffic shares.
//!
//! `scale.rs` uses this network. The round-trip time between two hosts is the sum of the round-trip times of their
//! links.

use std::fs;

use anyhow::{Context, Result};

use crate::network::hosts::{self, Emulator, LinkArgs};
use crate::network::{Network, Pair};
use crate::processes::session::Session;
use crate::processes::{inside, run};
use crate::units::{ByteCount, LossShare, Rate, RoundTrip};

/// The router and its hosts, which are removed when dropped.
#[derive(Debug)]
pub(crate) struct Star {
    _network: Network,
}

/// A host to set up.
#[derive(Clone, Debug)]
pub(crate) struct Spoke {
    pub(crate) name: String,
    /// The rate of its link in each direction.
    pub(crate) rate: Rate,
    /// The round-trip time between the host and the router.
    pub(crate) round_trip: RoundTrip,
}

/// A host that was set up.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// The network namespace of the host.
    pub(crate) namespace: String,
    pub(crate) address: String,
    /// The device of the host's link.
    device: String,
}

impl Host {
    /// Returns the bytes that the host's link has carried so far, in both directions.
    pub(crate) fn carried_bytes(&self) -> Result<u64> {
        hosts::carried_bytes(&self.namespace, &self.device)
    }
}

impl Star {
    /// Sets up the router and all hosts.
    pub(crate) fn open(session: &Session, spokes: &[Spoke]) -> Result<(Self, Vec<Host>)> {
        let names: Vec<&str> = std::iter::once(ROUTER)
            .chain(spokes.iter().map(|spoke| &*spoke.name))
            .collect();
        let mut network = Network::open(session, &names, CONGESTION)?;
        let mut made = Vec::new();
        for (number, spoke) in (1..).zip(spokes) {
            let pair = Pair {
                from: number,
                to: 0,
            };
            network.join(pair, &link(spoke), spoke.round_trip)?;
            let way = network
                .between(pair)
                .context("these hosts have just been joined")?;
            let [address, router] = way.addresses();
            let [namespace, router_namespace] = way.names();
            run::line(&format!("ip -n {namespace} route add default via {router}"))?;
            if number == 1 {
                inside::on_host(&router_namespace, forward)?;
            }
            made.push(Host {
                namespace,
                address,
                device: way.device().to_owned(),
            });
        }
        Ok((Self { _network: network }, made))
    }
}

/// Returns the settings of a host's link. Without a round-trip time, the kernel's token buckets are sufficient. They
/// leave the CPU to the programs under test.
fn link(
    &Spoke {
        rate, round_trip, ..
    }: &Spoke,
) -> LinkArgs {
    let emulator = if round_trip.0.is_zero() {
        Emulator::Tbf
    } else {
        Emulator::User
    };
    let queue = rate.bytes_in(round_trip.0).max(QUEUE_BYTES_FLOOR);
    LinkArgs {
        rate: Some(rate),
        loss: LossShare(0.0),
        queue: Some(ByteCount(queue)),
        mtu: MTU,
        congestion: CONGESTION.to_owned(),
        emulator,
    }
}

fn forward() -> Result<()> {
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("failed to make a router")
}

const ROUTER: &str = "router";
const CONGESTION: &str = "cubic";
const MTU: u32 = 9000;
/// Minimum size of a link's queue: sixteen of the 64 KiB segments that hosts pass to their links.
const QUEUE_BYTES_FLOOR: u64 = 1 << 20;
