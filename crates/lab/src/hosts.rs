//! Two hosts, `source` and `target`: network namespaces joined by the emulated path.
//!
//! Where the kernel has netem, a veth pair with netem carries the packets; elsewhere `path.rs` does in user space.
//! Both namespaces get the same large TCP windows, one congestion control, and no memory of earlier connections.

use std::fs;

use anyhow::{Context, Result};
use clap::Args;

use crate::inside;
use crate::path::Path;
use crate::run;
use crate::schedule::LinkShape;
use crate::session::Session;
use crate::tun::{self, Segments};
use crate::units::{ByteCount, LossShare, Rate, RoundTrip};

/// The path between the hosts, apart from its round trip.
#[derive(Args, Clone, Debug)]
pub(crate) struct LinkArgs {
    /// Bottleneck rate of each direction, as 1Gbit; counts IP bytes. Default: none.
    #[arg(long)]
    pub(crate) rate: Option<Rate>,
    /// Packets lost, in per cent; turns segment offload off.
    #[arg(long, default_value = "0")]
    pub(crate) loss: LossShare,
    /// Bytes that may wait before the bottleneck. Default: what the rate carries in a round trip, at least 256KiB.
    #[arg(long)]
    pub(crate) queue: Option<ByteCount>,
    /// Largest IP packet.
    #[arg(long, default_value_t = 9000)]
    pub(crate) mtu: u32,
    /// TCP congestion control of both hosts.
    #[arg(long, default_value = "cubic")]
    pub(crate) congestion: String,
    /// What emulates the path.
    #[arg(long, value_enum, default_value_t = Emulator::Auto)]
    pub(crate) emulator: Emulator,
}

/// What emulates the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Emulator {
    /// netem where the kernel has it, else user space.
    Auto,
    /// The kernel's netem over a veth pair.
    Netem,
    /// This program, over two TUN devices.
    User,
}

impl LinkArgs {
    fn shape(&self, round_trip: RoundTrip) -> LinkShape {
        let product = self.rate.map_or(0, |rate| rate.bytes_in(round_trip.0));
        let queue_bytes_max = self.queue.map_or(product.max(QUEUE_BYTES_FLOOR), |queue| queue.0);
        LinkShape { rate: self.rate, queue_bytes_max, delay: round_trip.one_way(), loss: self.loss }
    }

    /// What the rate leaves for the payload of TCP over IPv4 with timestamps, in bits per second; none without a rate.
    #[expect(clippy::cast_precision_loss, reason = "rates are far below 2^52")]
    pub(crate) fn payload_rate(&self) -> Option<f64> {
        let payload_bytes = self.mtu.saturating_sub(TCP_HEADERS_BYTES);
        self.rate.map(|rate| rate.0 as f64 * f64::from(payload_bytes) / f64::from(self.mtu))
    }

    /// One line about the path for report headers.
    pub(crate) fn describe(&self) -> String {
        let mut rate = self.rate.map_or_else(|| "none".to_owned(), |rate| format!("{} bit/s", rate.0));
        if let Some(payload) = self.payload_rate() {
            rate.push_str(&format!(" ({payload:.0} of TCP payload)"));
        }
        let queue = self.queue.map_or_else(|| "default".to_owned(), |queue| format!("{} B", queue.0));
        let loss = self.loss.0 * 100.0;
        format!("rate {rate}, loss {loss} %, queue {queue}, MTU {}, {}", self.mtu, self.congestion)
    }
}

/// The two hosts; dropping them removes both.
#[derive(Debug)]
pub(crate) struct Hosts {
    pub(crate) source: String,
    pub(crate) target: String,
    path: Option<Path>,
}

impl Hosts {
    /// Sets up both hosts and the path between them.
    pub(crate) fn open(session: &Session, link: &LinkArgs, round_trip: RoundTrip) -> Result<Self> {
        allow_congestion_control(&link.congestion)?;
        let id = session.id();
        let mut hosts = Self { source: format!("zl{id}-src"), target: format!("zl{id}-dst"), path: None };
        for name in [&hosts.source, &hosts.target] {
            run::line(&format!("ip netns add {name}"))?;
            inside::on_host(name, || tune(&link.congestion))?;
        }
        let netem = match link.emulator {
            Emulator::User => false,
            Emulator::Netem => true,
            Emulator::Auto => has_netem(&hosts.source),
        };
        if netem {
            hosts.join_by_netem(link, round_trip)?;
        } else {
            hosts.join_by_tun(link, round_trip)?;
        }
        hosts.configure(&hosts.source, 1, link)?;
        hosts.configure(&hosts.target, 2, link)?;
        Ok(hosts)
    }

    /// What both hosts have sent to each other so far, by the account of the source's device. The headers of a segment that
    /// is cut into packets behind it count once.
    pub(crate) fn carried_bytes(&self) -> Result<u64> {
        let list = "/proc/thread-self/net/dev";
        let text = inside::on_host(&self.source, || {
            fs::read_to_string(list).with_context(|| format!("failed to read {list}"))
        })?;
        text.lines().find_map(device_bytes).with_context(|| format!("{list} has no {DEVICE}"))
    }

    fn join_by_tun(&mut self, link: &LinkArgs, round_trip: RoundTrip) -> Result<()> {
        let segments = if link.loss.0 > 0.0 { Segments::Cut } else { Segments::Whole };
        let source = inside::on_host(&self.source, || tun::open(DEVICE, segments))?;
        let target = inside::on_host(&self.target, || tun::open(DEVICE, segments))?;
        self.path = Some(Path::start(source, target, link.shape(round_trip))?);
        Ok(())
    }

    fn join_by_netem(&self, link: &LinkArgs, round_trip: RoundTrip) -> Result<()> {
        let (source, target) = (&self.source, &self.target);
        run::line(&format!("ip -n {source} link add {DEVICE} type veth peer name {DEVICE} netns {target}"))?;
        let shape = link.shape(round_trip);
        let rate = link.rate.map_or_else(String::new, |rate| format!("rate {}bit", rate.0));
        let packets = match link.rate {
            Some(rate) => (shape.queue_bytes_max + rate.bytes_in(shape.delay)) / u64::from(link.mtu) + 1,
            None => NETEM_PACKETS_MAX,
        };
        for name in [source, target] {
            if link.loss.0 > 0.0 {
                run::line(&format!("ip -n {name} link set {DEVICE} gso_max_segs 1"))?;
            }
            run::line(&format!(
                "tc -n {name} qdisc add dev {DEVICE} root netem delay {}us loss {}% {rate} limit {packets}",
                shape.delay.as_micros(),
                link.loss.0 * 100.0,
            ))?;
        }
        Ok(())
    }

    fn configure(&self, name: &str, host: u8, link: &LinkArgs) -> Result<()> {
        let mtu = link.mtu;
        run::line(&format!("ip -n {name} link set lo up"))?;
        run::line(&format!("ip -n {name} addr add 10.99.0.{host}/24 dev {DEVICE}"))?;
        run::line(&format!("ip -n {name} link set {DEVICE} mtu {mtu} txqueuelen {QUEUE_PACKETS} up"))?;
        run::line(&format!("ip -n {name} addr add fd99::{host}/64 dev {DEVICE} nodad"))?;
        Ok(())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in [&self.source, &self.target] {
            if self.path.is_some() {
                run::clean_up(&format!("ip -n {name} link del {DEVICE}"));
            }
            run::clean_up(&format!("ip netns del {name}"));
        }
        if let Some(path) = self.path.take() {
            path.join();
        }
    }
}

/// Bytes received and sent, of the line about the device that leads to the other host.
fn device_bytes(line: &str) -> Option<u64> {
    let counts = line.trim_start().strip_prefix(DEVICE)?.strip_prefix(':')?;
    let counts: Vec<u64> = counts.split_whitespace().map_while(|count| count.parse().ok()).collect();
    Some(counts.first()? + counts.get(SENT_BYTES_COLUMN)?)
}

/// Sets what a namespace does not inherit; runs on a thread inside it.
fn tune(congestion: &str) -> Result<()> {
    let settings = [
        ("tcp_rmem", "4096 131072 134217728"),
        ("tcp_wmem", "4096 16384 134217728"),
        ("tcp_no_metrics_save", "1"),
        ("tcp_congestion_control", congestion),
    ];
    for (name, value) in settings {
        let path = format!("/proc/sys/net/ipv4/{name}");
        fs::write(&path, value).with_context(|| format!("failed to write {value} to {path}"))?;
    }
    Ok(())
}

/// A namespace may use only what the machine allows to all; adds to that, and leaves it added.
fn allow_congestion_control(name: &str) -> Result<()> {
    let path = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let allowed = fs::read_to_string(path).with_context(|| format!("failed to read {path}"))?;
    if allowed.split_whitespace().any(|word| word == name) {
        return Ok(());
    }
    fs::write(path, format!("{} {name}", allowed.trim())).with_context(|| format!("failed to allow {name}"))
}

fn has_netem(namespace: &str) -> bool {
    let probe = run::line(&format!("tc -n {namespace} qdisc add dev lo root netem delay 1ms"));
    if probe.is_ok() {
        run::clean_up(&format!("tc -n {namespace} qdisc del dev lo root"));
    }
    probe.is_ok()
}

/// Addresses of the hosts.
pub(crate) const SOURCE_ADDRESS: &str = "10.99.0.1";
pub(crate) const TARGET_ADDRESS: &str = "10.99.0.2";
const DEVICE: &str = "zl0";
/// In `/proc/net/dev`, behind eight columns about what has been received.
const SENT_BYTES_COLUMN: usize = 8;
/// IPv4, TCP and its timestamps.
const TCP_HEADERS_BYTES: u32 = 20 + 20 + 12;
const QUEUE_BYTES_FLOOR: u64 = 256 * 1024;
const QUEUE_PACKETS: u32 = 10_000;
const NETEM_PACKETS_MAX: u64 = 1_000_000;

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
        assert_eq!(device_bytes(line), Some(3_100));
        assert_eq!(device_bytes(&line.replace("zl0", "lo")), None);
        assert_eq!(device_bytes("   zl0:  100  2"), None);
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
        assert_eq!((shape.queue_bytes_max, shape.loss), (10_000_000, LossShare(0.0001)));
        let told = Typed::parse_from(["lab", "--rate", "1Gbit", "--queue", "64KiB"]);
        assert_eq!(told.link.shape(round_trip).queue_bytes_max, 65_536);
    }
}
