//! Two hosts, `source` and `target`: network namespaces connected by an emulated path (`network.rs`).
//!
//! A veth pair with netem carries the packets if the kernel supports netem. Otherwise `network/path.rs` carries them in
//! user space. Both namespaces have the same large TCP windows and the same congestion control, and do not cache
//! metrics of earlier connections.

use std::fs;

use anyhow::{Context, Result};
use clap::Args;

use crate::network::schedule::LinkShape;
use crate::network::{Network, Pair, Way};
use crate::processes::inside;
use crate::processes::session::Session;
use crate::units::{ByteCount, LossShare, Rate, RoundTrip};

/// The settings of a path, except for its round-trip time.
#[derive(Args, Clone, Debug)]
pub(crate) struct LinkArgs {
    /// Bottleneck rate of each direction, such as 1Gbit, in IP bytes. Default: no limit. In `matrix`: the rates of the
    /// sites' links.
    #[arg(long)]
    pub(crate) rate: Option<Rate>,
    /// Percentage of packets to drop. Any value above 0 disables segmentation offload.
    #[arg(long, default_value = "0")]
    pub(crate) loss: LossShare,
    /// Size of the queue at the bottleneck, in bytes. Default: the bandwidth-delay product, at least 256KiB.
    #[arg(long)]
    pub(crate) queue: Option<ByteCount>,
    /// Maximum size of an IP packet.
    #[arg(long, default_value_t = 9000)]
    pub(crate) mtu: u32,
    /// TCP congestion control of both hosts.
    #[arg(long, default_value = "cubic")]
    pub(crate) congestion: String,
    /// The emulator of the path.
    #[arg(long, value_enum, default_value_t = Emulator::Auto)]
    pub(crate) emulator: Emulator,
}

/// The emulator of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Emulator {
    /// netem if the kernel supports it, otherwise user space.
    Auto,
    /// The kernel's netem over a veth pair.
    Netem,
    /// This program, over two TUN devices.
    User,
    /// The kernel's token buckets over a veth pair: a rate limit, without delay or loss.
    Tbf,
}

impl LinkArgs {
    pub(crate) fn shape(&self, round_trip: RoundTrip) -> LinkShape {
        let product = self.rate.map_or(0, |rate| rate.bytes_in(round_trip.0));
        let queue_bytes_max = self
            .queue
            .map_or(product.max(QUEUE_BYTES_FLOOR), |queue| queue.0);
        LinkShape {
            rate: self.rate,
            queue_bytes_max,
            delay: round_trip.one_way(),
            loss: self.loss,
        }
    }

    /// Returns the rate available to the payload of TCP over IPv4 with timestamps, in bits per second. `None` without a
    /// rate limit.
    #[expect(clippy::cast_precision_loss, reason = "rates are far below 2^52")]
    pub(crate) fn payload_rate(&self) -> Option<f64> {
        let payload_bytes = self.mtu.saturating_sub(TCP_HEADERS_BYTES);
        self.rate
            .map(|rate| rate.0 as f64 * f64::from(payload_bytes) / f64::from(self.mtu))
    }

    /// Returns a line that describes the path, for the header of a report.
    pub(crate) fn describe(&self) -> String {
        let mut rate = self
            .rate
            .map_or_else(|| "none".to_owned(), |rate| format!("{} bit/s", rate.0));
        if let Some(payload) = self.payload_rate() {
            rate.push_str(&format!(" ({payload:.0} of TCP payload)"));
        }
        let queue = self
            .queue
            .map_or_else(|| "default".to_owned(), |queue| format!("{} B", queue.0));
        let loss = self.loss.0 * 100.0;
        format!(
            "rate {rate}, loss {loss} %, queue {queue}, MTU {}, {}",
            self.mtu, self.congestion
        )
    }
}

/// The two hosts. Dropping this value removes both, unless they belong to a larger network.
#[derive(Debug)]
pub(crate) struct Hosts {
    pub(crate) source: String,
    pub(crate) target: String,
    pub(crate) source_address: String,
    pub(crate) target_address: String,
    way: Way,
}

impl Hosts {
    /// Sets up both hosts and the path between them.
    pub(crate) fn open(session: &Session, link: &LinkArgs, round_trip: RoundTrip) -> Result<Self> {
        let mut network = Network::open(session, &["src", "dst"], &link.congestion)?;
        let pair = Pair { from: 0, to: 1 };
        network.join(pair, link, round_trip)?;
        Self::of(&network, pair)
    }

    /// Returns two hosts of a network that are connected by a path.
    pub(crate) fn of(network: &Network, pair: Pair) -> Result<Self> {
        let way = network
            .between(pair)
            .context("these hosts are not joined")?;
        let ([source, target], [source_address, target_address]) = (way.names(), way.addresses());
        Ok(Self {
            source,
            target,
            source_address,
            target_address,
            way,
        })
    }

    /// Returns the configured round-trip time of the path.
    pub(crate) fn round_trip(&self) -> RoundTrip {
        self.way.round_trip()
    }

    /// Returns the bytes that both hosts have sent to each other so far, as counted by the source's device. The headers
    /// of a segment count once, even if the segment is later split into packets.
    pub(crate) fn carried_bytes(&self) -> Result<u64> {
        carried_bytes(&self.source, self.way.device())
    }
}

/// Returns the bytes that a device of a namespace has received and sent so far.
pub(crate) fn carried_bytes(namespace: &str, device: &str) -> Result<u64> {
    let list = "/proc/thread-self/net/dev";
    let text = inside::on_host(namespace, || {
        fs::read_to_string(list).with_context(|| format!("failed to read {list}"))
    })?;
    let bytes = text.lines().find_map(|line| device_bytes(line, device));
    bytes.with_context(|| format!("{list} has no {device}"))
}

/// Parses the sum of bytes received and sent from a line of `/proc/net/dev`. `None` if the line belongs to another
/// device.
fn device_bytes(line: &str, device: &str) -> Option<u64> {
    let counts = line.trim_start().strip_prefix(device)?.strip_prefix(':')?;
    let counts: Vec<u64> = counts
        .split_whitespace()
        .map_while(|count| count.parse().ok())
        .collect();
    Some(counts.first()? + counts.get(SENT_BYTES_COLUMN)?)
}

/// The column of sent bytes in `/proc/net/dev`, after eight columns for received data.
const SENT_BYTES_COLUMN: usize = 8;
/// Bytes of the IPv4 and TCP headers with timestamps.
const TCP_HEADERS_BYTES: u32 = 20 + 20 + 12;
const QUEUE_BYTES_FLOOR: u64 = 256 * 1024;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        link: LinkArgs,
    }

    #[test]
    fn both_directions_of_the_device_count() {
        let line = "   zl0:  100  2 0 0 0 0 0 0  3000  4 0 0 0 0 0 0";
        assert_eq!(device_bytes(line, "zl0"), Some(3_100));
        assert_eq!(device_bytes(&line.replace("zl0", "zl01"), "zl0"), None);
        assert_eq!(device_bytes("   zl0:  100  2", "zl0"), None);
    }

    #[test]
    fn headers_are_taken_off_the_rate() {
        let typed = Typed::parse_from(["lab", "--rate", "1Gbit", "--mtu", "1500"]);
        let payload = typed.link.payload_rate().unwrap();
        assert_eq!(format!("{payload:.0}"), "965333333");
        assert_eq!(Typed::parse_from(["lab"]).link.payload_rate(), None);
    }

    #[test]
    fn the_queue_holds_a_round_trip_unless_it_is_told() {
        let round_trip: RoundTrip = "80".parse().unwrap();
        let typed = Typed::parse_from(["lab", "--rate", "1Gbit", "--loss", "0.01"]);
        let shape = typed.link.shape(round_trip);
        assert_eq!(
            (shape.queue_bytes_max, shape.loss),
            (10_000_000, LossShare(0.0001))
        );
        let told = Typed::parse_from(["lab", "--rate", "1Gbit", "--queue", "64KiB"]);
        assert_eq!(told.link.shape(round_trip).queue_bytes_max, 65_536);
    }
}
